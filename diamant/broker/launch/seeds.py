"""The files of `--seed`: records that are written before a command starts."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.broker.errors import BadArgument
from diamant.broker.record_json import RecordLine, parse_record_line
from diamant.storage.input_file import read_input

MAX_SEED_BYTES = 256 * 1024 * 1024
"""The largest file. Its records are in memory until they are written."""


class SeedType(click.Path):
    """The type of `--seed`: a file, or a number for `--any-compaction`. A file named 7 is given as ./7."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or the number as text. Raises BadParameter."""
        return value if str(value).isdecimal() else super().convert(value, param, ctx)


class SeedLine(NamedTuple):
    """A record with its file and line."""

    path: str
    number: int
    record: RecordLine


def read_seed(path: str) -> list[SeedLine]:
    """Read the records of a file; empty lines are skipped. BadArgument names file and line; OSError."""
    found = []
    data = read_input(path, MAX_SEED_BYTES)
    done_bytes = 0
    with LiveProgress() as progress:
        for number, line in enumerate(data.splitlines(), 1):
            done_bytes += len(line) + 1
            progress.show_bytes(done_bytes, done_bytes / len(data))
            if line.strip():
                try:
                    found.append(SeedLine(path, number, parse_record_line(line)))
                except BadArgument as error:
                    raise BadArgument(f"{path}, line {number}: {error}") from None
    return found
