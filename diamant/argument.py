"""Arguments of operations. Each is declared once, as a field of a request, for Python, HTTP and commands.

    force: Annotated[bool, Argument("Ignore min.compaction.lag.ms.")] = False

An argument has the field's name, type and default. The aliases below declare the arguments that several operations share.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

MAX_INTEGER = (1 << 63) - 1
MAX_PARTITION = (1 << 31) - 1
MAX_DURATION_S = 366 * 24 * 3_600
"""The longest duration that an argument accepts: a leap year."""


class Argument(NamedTuple):
    """The help text and the limits of an argument."""

    help: str
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = MAX_INTEGER
    """The smallest and the largest accepted number, in seconds for a duration."""
    short: str = ""
    """A one-letter option, such as `-p`, that commands accept in addition to the argument's name."""


Topic: TypeAlias = Annotated[str, Argument("The topic.")]
Partition: TypeAlias = Annotated[int | None, Argument("One partition. Default: all.", most=MAX_PARTITION, short="-p")]
ValidateOnly: TypeAlias = Annotated[
    bool, Argument("Validate the request and return its effect without changing anything.")
]
Force: TypeAlias = Annotated[bool, Argument("Ignore min.compaction.lag.ms.")]
Engine: TypeAlias = Annotated[
    str | None,
    Argument(
        "The engine to use regardless of size: a thread of the broker, a worker process, or Spark. If a Spark job fails, a "
        "worker process takes over.",
        ("inline", "process", "spark"),
    ),
]
Registry: TypeAlias = Annotated[
    str | None,
    Argument(
        "URL of the schema registry to use instead of the broker's. Only the broker's registry receives the configured login."
    ),
]
Timeout: TypeAlias = Annotated[
    float | None,
    Argument("How long to wait, in real time. Work that has started continues.", most=MAX_DURATION_S),
]
"""In seconds. Callers may also pass a string such as `10m`."""
