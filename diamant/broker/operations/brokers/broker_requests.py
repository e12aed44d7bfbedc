"""Requests of the operations on the brokers of one process. Commands read them here."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, TypeAlias

from diamant.argument import MAX_DURATION_S, MAX_INTEGER, MAX_PARTITION, Argument, Topic

BrokerId: TypeAlias = Annotated[int, Argument("The broker's id.", most=MAX_PARTITION)]
OnePartition: TypeAlias = Annotated[int, Argument("The partition.", most=MAX_PARTITION)]


@dataclass(frozen=True, slots=True)
class DownRequest:
    """A broker to take down. Errors: NotFound, NotPossible if it is down."""

    broker: BrokerId
    _: KW_ONLY
    hard: Annotated[bool, Argument("Answer nothing more, with the port open, as a host that hangs.")] = False


@dataclass(frozen=True, slots=True)
class UpRequest:
    """A broker to bring back, on its ports. Errors: NotFound, NotPossible if it is up."""

    broker: BrokerId
    _: KW_ONLY
    lag: Annotated[float, Argument("Be in sync after this time on the broker's clock.", most=MAX_DURATION_S)] = 0


@dataclass(frozen=True, slots=True)
class FenceRequest:
    """A broker to fence: it is in no ISR and leads nothing, and answers. Errors: NotFound, NotPossible if it is not up."""

    broker: BrokerId


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """The leader of a partition. Errors: NotFound, NotPossible if the broker is not an in-sync replica, or leads already."""

    topic: Topic
    partition: OnePartition
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class LagRequest:
    """The lag of a broker, where it follows. Errors: NotFound, BadArgument."""

    broker: BrokerId
    by: Annotated[Any, Argument("How far it is behind: a text such as 500ms or 100 records; 0 ends it.")]


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """The delay of a broker's answers. Errors: NotFound, BadArgument."""

    broker: BrokerId
    by: Annotated[
        float,
        Argument("How long each request waits, in real time: seconds, or a text such as 300ms; 0 ends it.", most=300),
    ]


@dataclass(frozen=True, slots=True)
class ShuffleRequest:
    """New leaders for partitions, each another in-sync replica at random. Errors: NotFound."""

    topic: Annotated[str | None, Argument("One topic. Default: all, with those of the coordinators.")] = None
    _: KW_ONLY
    seed: Annotated[int | None, Argument("Repeats the choice.", most=MAX_INTEGER)] = None


@dataclass(frozen=True, slots=True)
class UncleanRequest:
    """A leader that lacks the end of a partition, which is lost. Errors: NotFound, NotPossible, BadArgument."""

    topic: Topic
    partition: OnePartition
    broker: BrokerId
    offset: Annotated[
        int, Argument("The batch of this offset and those after it are removed, each whole: so Kafka truncates.")
    ]
