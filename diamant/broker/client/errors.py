"""Errors of the operations over HTTP: one class for each way in which the caller can react.

`status` is that of HTTP, `code` a word for programs. The text is for people: it says what, where, what was expected and what to
do next, and never holds a key or a value of a record.
"""

from __future__ import annotations


class VerbError(Exception):
    """The base: what was tried has failed."""

    status = 500
    code = "failed"


class BadArgument(VerbError):
    """The request makes no sense as it stands."""

    status = 400
    code = "bad-argument"


class NotAllowed(VerbError):
    """The caller, or this broker as it was started, may not do that."""

    status = 403
    code = "not-allowed"


class NotFound(VerbError):
    """There is no such topic, partition, job or certificate."""

    status = 404
    code = "not-found"


class NotPossible(VerbError):
    """It exists, but in its present state that cannot be done: a topic that is not compacted, a second call at once."""

    status = 409
    code = "not-possible"


class NotGenuine(NotPossible):
    """A certificate in the data directory is not as it was signed."""

    code = "not-genuine"


class TimedOut(VerbError):
    """The call did not end in the given time; work that was begun may continue."""

    status = 504
    code = "timed-out"


class TooMany(VerbError):
    """A bound on how much at once is reached; later it may be possible."""

    status = 429
    code = "too-many"
