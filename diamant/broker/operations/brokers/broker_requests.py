"""Requests of the operations on the brokers of one process. Commands import them from here."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, TypeAlias

from diamant.argument import MAX_DURATION_S, MAX_INTEGER, MAX_PARTITION, Argument, Topic

BrokerId: TypeAlias = Annotated[int, Argument("The broker's id.", most=MAX_PARTITION)]
OnePartition: TypeAlias = Annotated[int, Argument("The partition.", most=MAX_PARTITION)]


@dataclass(frozen=True, slots=True)
class DownRequest:
    """Takes a broker down. Errors: NotFound, NotPossible if it is already down."""

    broker: BrokerId
    _: KW_ONLY
    hard: Annotated[bool, Argument("Keep the port open but answer nothing, like a host that hangs.")] = False


@dataclass(frozen=True, slots=True)
class UpRequest:
    """Brings a broker back on its ports. Errors: NotFound, NotPossible if it is already up."""

    broker: BrokerId
    _: KW_ONLY
    lag: Annotated[float, Argument("Be in sync after this time on the broker's clock.", most=MAX_DURATION_S)] = 0


@dataclass(frozen=True, slots=True)
class FenceRequest:
    """Fences a broker: it answers, but leaves every ISR and leads nothing. Errors: NotFound, NotPossible if it is not up."""

    broker: BrokerId


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Makes a broker a partition's leader. Errors: NotFound, NotPossible if it is not in sync or is already the leader."""

    topic: Topic
    partition: OnePartition
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class LagRequest:
    """Makes a broker lag as a follower. Errors: NotFound, BadArgument."""

    broker: BrokerId
    by: Annotated[Any, Argument("How far the broker lags, such as 500ms or 100 records; 0 ends the lag.")]


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """Delays the requests to a broker. Errors: NotFound, BadArgument."""

    broker: BrokerId
    by: Annotated[
        float,
        Argument("The delay of each request, in real time: seconds, or a string such as 300ms; 0 ends it.", most=300),
    ]


@dataclass(frozen=True, slots=True)
class ShuffleRequest:
    """Moves each partition's leader to another in-sync replica, chosen at random. Errors: NotFound."""

    topic: Annotated[str | None, Argument("One topic. Default: all topics, including internal topics.")] = None
    _: KW_ONLY
    seed: Annotated[int | None, Argument("An equal seed repeats the random choices.", most=MAX_INTEGER)] = None


@dataclass(frozen=True, slots=True)
class UncleanRequest:
    """Elects a leader that lacks a partition's last batches; these are lost. Errors: NotFound, NotPossible, BadArgument."""

    topic: Topic
    partition: OnePartition
    broker: BrokerId
    offset: Annotated[
        int, Argument("The batch with this offset and all later batches are removed whole, as Kafka truncates.")
    ]
