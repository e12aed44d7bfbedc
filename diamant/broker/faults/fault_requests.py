"""Requests of the operations on faults. `FaultSpec` is a validated `FaultRequest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, TypeAlias

from diamant.argument import MAX_INTEGER, MAX_PARTITION, Argument

MAX_DELAY_MS = 300_000
"""The longest delay. Held requests are also released after this time."""

MAX_THROTTLE_MS = 300_000
MAX_WAIT_S = 8
"""The longest time that one request waits for firings. It is shorter than the time limit of a connection."""

CERTIFICATES = ("expired", "wrong-host")
"""The possible flaws of a certificate."""

FaultId: TypeAlias = Annotated[str, Argument("The fault's ID.")]


@dataclass(frozen=True, slots=True)
class FaultRequest:
    """Describes a fault to install. `Faults.add` says which fields may be combined."""

    api: Annotated[Any, Argument("The API's name or key, or a list of them. Default: every API.")] = None
    client_id: Annotated[str | None, Argument("Only requests of this client: an id or a pattern like app-*.")] = None
    topic: Annotated[str | None, Argument("Only requests for this topic.")] = None
    partition: Annotated[int | None, Argument("Only requests for this partition.", most=MAX_PARTITION)] = None
    broker: Annotated[int | None, Argument("Only requests to this broker.", most=MAX_PARTITION)] = None
    after: Annotated[int, Argument("The number of matching requests to skip.")] = 0
    times: Annotated[int | None, Argument("The number of requests to fire on. Default: all.", least=1)] = None
    probability: Annotated[Any, Argument("Fire on this share of the requests, above 0 and up to 1.")] = 1.0
    seed: Annotated[int | None, Argument("An equal seed repeats the random choices.", least=-MAX_INTEGER)] = None
    error: Annotated[Any, Argument("Answer with this error (a name or number) without handling the request.")] = None
    after_applying: Annotated[bool, Argument("Handle the request before an error, a delay, a hold or a drop.")] = False
    delay_ms: Annotated[int, Argument("Let the request wait for this time.", most=MAX_DELAY_MS)] = 0
    hold: Annotated[
        bool, Argument("Let the request wait until the fault is released or removed, but at most 5 minutes.")
    ] = False
    drop: Annotated[bool, Argument("Close the connection.")] = False
    cut: Annotated[
        Any, Argument("Handle the request, send half of the response (or this many bytes), and close the connection.")
    ] = False
    throttle_time_ms: Annotated[int, Argument("Report this throttle time in the response.", most=MAX_THROTTLE_MS)] = 0
    stale: Annotated[
        Mapping[str, Any] | None,
        Argument(
            "Make Metadata responses wrong: topics `missing`, another `leader_id`, `leader_epoch`, `host` or `port`, or an "
            "earlier `partition_count`."
        ),
    ] = None
    coordinator_loading: Annotated[bool, Argument("Answer with COORDINATOR_LOAD_IN_PROGRESS.")] = False
    certificate: Annotated[str | None, Argument("The flaw of the broker's certificate.", CERTIFICATES)] = None


@dataclass(frozen=True, slots=True)
class FaultIdRequest:
    """Names a fault. Errors: NotFound."""

    id: FaultId


@dataclass(frozen=True, slots=True)
class GetFaultRequest:
    """Asks for a fault, immediately or after it has fired. Errors: NotFound, TimedOut."""

    id: FaultId
    _: KW_ONLY
    wait_fired: Annotated[int, Argument("Respond once the fault has fired this many times.", most=1_000_000)] = 0
    timeout: Annotated[float, Argument("The longest time to wait for firings.", most=MAX_WAIT_S)] = MAX_WAIT_S
