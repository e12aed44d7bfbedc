"""Parts shared by the commands for log files: one-line errors, bytes and times as text."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager

from diamant import duration
from diamant.broker.commands.terminal.failures import fail, report
from diamant.cleaner.segments.tolerant_reader import Problem
from diamant.storage.errors import StorageError, WrongInput

_WHITESPACE = "\n\r\t"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """If the user can fix an error, report it in one line on standard error and exit."""
    try:
        yield
    except StorageError as error:
        fail(str(error), "bad-argument" if isinstance(error, WrongInput) else "failed")
    except BrokenPipeError:
        raise  # click handles a closed pager
    except OSError as error:
        reason = error.strerror or str(error)
        fail(f"{error.filename}: {reason}" if error.filename else reason)


def show_problem(problem: Problem) -> None:
    """Print a problem to standard error."""
    report(str(problem), "damaged", **problem_fields(problem))


def problem_fields(problem: Problem) -> dict[str, object]:
    """Convert a problem to fields for JSON."""
    return {"file": problem.path, "position": problem.position, "reason": problem.reason}


# -- numbers, bytes and times ---------------------------------------------------------------------------------------------------


def visible(text: str) -> str:
    """Make text from other sources safe for a terminal, by replacing each character that is not printable with an escape."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def bytes_text(data: bytes | None) -> str:
    """Format bytes for people: `null` for None, a quoted string if all of it is printable, else hexadecimal."""
    if data is None:
        return "null"
    text = _printable(data)
    return f"0x{data.hex()}" if text is None else json.dumps(text, ensure_ascii=False)


def bytes_json(data: bytes | None) -> str | dict[str, str] | None:
    """Convert bytes to a value for JSON: null for None, a string if all of it is printable, else `{"base64": ...}`."""
    if data is None:
        return None
    text = _printable(data)
    return {"base64": base64.b64encode(data).decode("ascii")} if text is None else text


def _printable(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if all(letter.isprintable() or letter in _WHITESPACE for letter in text) else None


def time_text(time_ms: int | None) -> str:
    """Format a time, given in ms since 1970, in UTC; `-` for None."""
    return "-" if time_ms is None or time_ms == -1 else duration.time_text(time_ms)


MIB = 1024 * 1024
