"""Errors of the operations over HTTP, one class for each possible reaction of the caller.

`status` is the HTTP status, `code` an error code for programs. The text says what failed, where, what was expected and what to do
next. It never contains a key or a value of a record.
"""

from __future__ import annotations


class VerbError(Exception):
    """The base class: an operation failed."""

    status = 500
    code = "failed"


class BadArgument(VerbError):
    """The request is invalid."""

    status = 400
    code = "bad-argument"


class NotAllowed(VerbError):
    """The operation is not allowed for this caller, or on a broker with these settings."""

    status = 403
    code = "not-allowed"


class NotFound(VerbError):
    """The topic, partition, job or certificate does not exist."""

    status = 404
    code = "not-found"


class NotPossible(VerbError):
    """The target exists, but its state rules out the operation: a topic that is not compacted, a second simultaneous call."""

    status = 409
    code = "not-possible"


class NotGenuine(NotPossible):
    """A certificate in the data directory has changed since it was signed."""

    code = "not-genuine"


class TimedOut(VerbError):
    """The call timed out. Work that it started may continue."""

    status = 504
    code = "timed-out"


class TooMany(VerbError):
    """A limit on simultaneous work is reached. The call may succeed later."""

    status = 429
    code = "too-many"
