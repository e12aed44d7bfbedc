"""Types of the operations' methods: mypy finds each wrong use of `Broker`, `BlockingBroker` and `Admin`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diamant.broker.dispatch.operation_table import OPERATIONS
from diamant.broker.operations.calls.parameters import Param, params_of

ROOT = Path(__file__).resolve().parents[2]
HEAD = """\
from diamant import Admin, BlockingBroker, Broker


async def uses(broker: Broker, blocking: BlockingBroker, admin: Admin) -> None:
"""
RIGHT = {
    "string": '"x"',
    "integer": "1",
    "boolean": "True",
    "duration": '"10m"',
    "strings": '["x"]',
    "key": 'b"x"',
    "object": "{}",
    "objects": "[{}]",
    "any": "[]",
}
WRONG = {
    "string": "7",
    "integer": '"x"',
    "boolean": '"x"',
    "duration": "[]",
    "strings": "7",
    "key": "7",
    "object": "7",
    "objects": "7",
}


CALLERS = {"await broker": "Broker", "blocking": "Broker", "admin": "Admin"}
"""What a method is called on, and the class for which `OperationRow.methods` names it."""


def calls() -> Iterator[tuple[str, bool]]:
    """Each method called rightly, then without its arguments, with an unknown one, and with each of the wrong type."""
    for name, row in OPERATIONS.items():
        params = params_of(row.request_class())
        required = {param.name: right(param) for param in params if param.is_required}
        for of in (of for of, kind in CALLERS.items() if kind in row.methods):
            everything = {param.name: right(param) for param in params}
            yield call(f"{of}.{name}", everything), True
            yield call(f"{of}.{name}", required), True
            yield call(f"{of}.{name}", {**required, "unheard_of": "1"}), False
            if required:
                yield call(f"{of}.{name}", {}), False
            for param in params:
                if param.type in WRONG:
                    yield call(f"{of}.{name}", {**required, param.name: WRONG[param.type]}), False
            yield f"{call(f'{of}.{name}', required)}.unheard_of", False


def right(param: Param) -> str:
    return f'"{param.choices[0]}"' if param.choices else RIGHT[param.type]


def call(method: str, arguments: dict[str, str]) -> str:
    text = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return f"({method}({text}))" if method.startswith("await") else f"{method}({text})"


@pytest.mark.slow
def test_each_wrong_use_of_a_method_is_found(tmp_path: Path) -> None:
    """Type checkers find unknown and missing arguments, values of a wrong type, and unknown attributes of results; right uses
    pass.
    """
    lines = [*calls()]
    file = tmp_path / "uses.py"
    file.write_text(HEAD + "".join(f"    {line}\n" for line, _ in lines))
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file", "pyproject.toml", str(file)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    wrong = {int(line.split(":")[1]) for line in found.stdout.splitlines() if " error: " in line}
    first = HEAD.count("\n") + 1
    expected = {number for number, (_, is_right) in enumerate(lines, first) if not is_right}
    told = {number: lines[number - first][0] for number in wrong ^ expected if number >= first}
    assert told == {}, found.stdout + found.stderr
    assert len(expected) > 200
