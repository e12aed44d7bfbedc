"""Options of `diamant exec`: topics to create, files of records to write first (`--seed`), and variables for the command."""

from __future__ import annotations

from typing import NamedTuple

import click

from diamant.broker.client.bootstrap import CA_VARIABLE, USER_VARIABLE
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.broker.operation_errors import BadArgument
from diamant.broker.record_json import RecordLine, parse_record_line
from diamant.storage.input_file import read_input

BOOTSTRAP, HTTP, DATA, USER, CA = "bootstrap", "http", "data", "user", "ca"
VARIABLES = {
    "KAFKA_BOOTSTRAP_SERVERS": BOOTSTRAP,
    "DIAMANT_BOOTSTRAP_SERVERS": BOOTSTRAP,
    "DIAMANT_HTTP_URL": HTTP,
    "DIAMANT_DATA": DATA,
    USER_VARIABLE: USER,
    CA_VARIABLE: CA,
}
"""The last two are set only if the broker has users or TLS."""


class TopicOption(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int | None
    policy: str | None


class TopicType(click.ParamType[TopicOption]):
    """The type of `--topic`."""

    name = "topic"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> TopicOption:
        """Parse NAME[:PARTITIONS[:POLICY]]. Raises BadParameter if the form is wrong."""
        name, *rest = str(value).split(":")
        partitions = rest[0] if rest else ""
        if not name or len(rest) > 2 or (partitions and not partitions.isdecimal()):
            self.fail(
                f"{value!r}: expected NAME, NAME:PARTITIONS or NAME:PARTITIONS:POLICY (users:6:compact)", param, ctx
            )
        return TopicOption(name, int(partitions) if partitions else None, rest[1] if len(rest) == 2 else None)


class VariableType(click.ParamType[tuple[str, str]]):
    """The type of `--env`."""

    name = "variable"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Parse NAME=WHAT, the name of a variable and what to set it to. Raises BadParameter if the form is wrong."""
        name, _, what = str(value).partition("=")
        if not name or what not in (BOOTSTRAP, HTTP, DATA, USER, CA):
            self.fail(f"{value!r}: expected NAME=bootstrap, NAME=http, NAME=data, NAME=user or NAME=ca", param, ctx)
        return name, what


MAX_SEED_BYTES = 256 * 1024 * 1024
"""The maximum size of a `--seed` file. Its records are held in memory until they are written."""


class SeedLine(NamedTuple):
    """A record, and the file and line from which it was read."""

    path: str
    number: int
    record: RecordLine


def read_seed(path: str) -> list[SeedLine]:
    """Read the records of a file, and skip empty lines. Raises BadArgument, with file and line, for a line that is no record.

    Raises OSError if the file cannot be read.
    """
    found = []
    data = read_input(path, MAX_SEED_BYTES)
    with LiveProgress(len(data)) as progress:
        for number, line in enumerate(data.splitlines(), 1):
            progress.advance(len(line) + 1)
            if line.strip():
                try:
                    found.append(SeedLine(path, number, parse_record_line(line)))
                except BadArgument as error:
                    raise BadArgument(f"{path}, line {number}: {error}") from None
    return found
