"""The requests of the operations that forget people and keep the register of persons' requests."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, TypeAlias

from diamant.argument import Argument, Registry, Timeout
from diamant.broker.erasure.certification.erasure_requests import Reason, Reference
from diamant.broker.person.reading_requests import Confirm, Identifiers, PersonMap, Subjects

Received: TypeAlias = Annotated[
    str, Argument("When the request was received, such as 2026-03-01 or 2026-03-01T10:00:00Z. Default: now.")
]
RequestId: TypeAlias = Annotated[str, Argument("The id of the request.")]
Kind: TypeAlias = Annotated[str, Argument("What the person asks for.", ("forget", "show", "correct"))]
Now: TypeAlias = Annotated[
    bool, Argument("Also remove tombstones before their horizon, unless groups have not read them, as with an erasure.")
]
ConfirmGroupsBehind: TypeAlias = Annotated[
    bool, Argument("With `now`: remove tombstones even if groups have not read them and never see the deletion.")
]


@dataclass(frozen=True, slots=True)
class PreviewRequest:
    """Finds a person's records and shows what forgetting would do, topic by topic. Changes nothing.

    Errors: BadArgument, NotPossible (a topic does not allow the action in the map), TooMany, Unconfirmed.
    """

    identifiers: Identifiers
    map: PersonMap
    _: KW_ONLY
    confirm: Confirm = False
    registry: Registry = None


@dataclass(frozen=True, slots=True)
class _Forgetting:
    """The arguments that `ForgetRequest` and `ForgetEachRequest` have in common."""

    _: KW_ONLY
    reason: Reason
    reference: Reference = ""
    received: Received = ""
    now: Now = False
    confirm_groups_behind: ConfirmGroupsBehind = False
    confirm: Confirm = False
    registry: Registry = None
    timeout: Timeout = None


@dataclass(frozen=True, slots=True)
class ForgetRequest(_Forgetting):
    """Forgets a person: treats the records in each topic as the map says, as one job.

    The operation returns once all data that the map removes is gone. If tombstones still name keys, the result states when the
    last paper will follow. Errors: BadArgument, NotPossible (for example, while another request of this person is in progress),
    Unconfirmed, TimedOut, ForgetFailed.
    """

    identifiers: Identifiers
    map: PersonMap


@dataclass(frozen=True, slots=True)
class PreviewEachRequest:
    """Finds the records of several people in one search, as `preview` does for one. An error names the person by number."""

    subjects: Subjects
    map: PersonMap
    _: KW_ONLY
    confirm: Confirm = False
    registry: Registry = None


@dataclass(frozen=True, slots=True)
class ForgetEachRequest(_Forgetting):
    """Forgets several people with one search and few scans. Each gets a paper, which names no other person.

    Errors: the same as for `forget`. If one person is refused, nothing is begun. Later failures are in the result.
    """

    subjects: Subjects
    map: PersonMap


@dataclass(frozen=True, slots=True)
class RequestsRequest:
    """Lists the requests in the register, in order of their due dates."""

    open: Annotated[bool, Argument("Only open requests.")] = False


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """Registers a request before anything is done about it. The due date is counted from the receipt of the request.

    Errors: BadArgument, NotPossible.
    """

    identifiers: Identifiers
    _: KW_ONLY
    kind: Kind = "forget"
    reference: Reference = ""
    received: Received = ""


@dataclass(frozen=True, slots=True)
class ExtendRequest:
    """Extends the due date of an open request, in total by at most two months. Errors: NotFound, NotPossible, BadArgument."""

    id: RequestId
    _: KW_ONLY
    reason: Annotated[str, Argument("The reason. The register keeps it, so it must name no identifier.")]
    months: Annotated[int, Argument("The extension in months.", least=1, most=2)] = 2


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """Closes a request that needs no further action. A request in progress is cancelled and ends as not certified.

    Errors: BadArgument, NotFound, NotPossible (all its parts are complete and only the last paper is missing).
    """

    id: RequestId
    _: KW_ONLY
    reason: Annotated[
        str, Argument("Such as answered, withdrawn or refused. The register keeps it, so it must name no identifier.")
    ]
