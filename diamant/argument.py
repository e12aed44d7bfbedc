"""Arguments of operations. Each is a field of a request, the same in Python, over HTTP and in commands.

    force: Annotated[bool, Argument("Ignore min.compaction.lag.ms.")] = False

An argument has the field's name, type and default. Arguments shared by operations are below, with the same name and help in all.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

MAX_INTEGER = (1 << 63) - 1
MAX_PARTITION = (1 << 31) - 1
MAX_DURATION_S = 366 * 24 * 3_600
"""The longest duration: a year."""


class Argument(NamedTuple):
    """The limits and the help of an argument."""

    help: str
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = MAX_INTEGER
    """The range of a number; in seconds for a duration."""
    short: str = ""
    """A one-letter option of commands, in addition to the argument's name, such as `-p`."""


Topic: TypeAlias = Annotated[str, Argument("The topic.")]
Partition: TypeAlias = Annotated[int | None, Argument("One partition. Default: all.", most=MAX_PARTITION, short="-p")]
ValidateOnly: TypeAlias = Annotated[bool, Argument("Validate the request and return its effect, without any change.")]
Force: TypeAlias = Annotated[bool, Argument("Ignore min.compaction.lag.ms.")]
Engine: TypeAlias = Annotated[
    str | None,
    Argument(
        "The engine for all sizes: a thread of the broker, a worker process, or Spark. If a Spark job fails, a worker process "
        "takes its place.",
        ("inline", "process", "spark"),
    ),
]
Registry: TypeAlias = Annotated[
    str | None,
    Argument(
        "URL of a schema registry for values with a schema, instead of the broker's. Only the broker's gets the configured login."
    ),
]
Timeout: TypeAlias = Annotated[
    float | None,
    Argument("How long to wait, in real time. Work that has started continues.", most=MAX_DURATION_S),
]
"""In seconds. Callers may also pass a text such as `10m`."""
