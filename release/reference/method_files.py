"""The generator of the operations' methods: those of `Broker` and `BlockingBroker` (`broker/operation_methods.py`), and
those of `Admin` (`client/admin_methods.py`).

python -m release.reference.method_files
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from inspect import get_annotations, getmodule, getsource
from pathlib import Path
from textwrap import wrap

import diamant
from diamant.broker.dispatch.operation_row import OperationRow, imported
from diamant.broker.dispatch.operation_table import OPERATIONS
from diamant.broker.operations.calls.parameters import Param, params_of

MOST_COLUMNS = 120

_TYPES = {
    "string": "str",
    "integer": "int",
    "boolean": "bool",
    "duration": "Duration",
    "strings": "str | Sequence[str]",
    "key": "bytes | str",
    "any": "Any",
    "object": "Mapping[str, Any]",
    "objects": "Sequence[Mapping[str, Any]]",
}
_HOMES = {
    "AbstractEventLoop": "asyncio",
    "Any": "typing",
    "Coroutine": "collections.abc",
    "Duration": "diamant.duration",
    "Iterator": "collections.abc",
    "Fields": "diamant.json_types",
    "JsonObject": "diamant.json_types",
    "Key": "diamant.json_types",
    "Literal": "typing",
    "Mapping": "collections.abc",
    "OnProgress": "diamant.json_types",
    "Progress": "diamant.progress",
    "Protocol": "typing",
    "Sequence": "collections.abc",
}

_BROKER = '''\
"""The operations as methods of `Broker` and `BlockingBroker`. Made by `make docs` from `dispatch/operation_table.py`.

The request of an operation (such as `CompactRequest`) says what the arguments mean.
"""

from __future__ import annotations

{imports}

{kind} Operations:
    """The awaited operations of a broker."""

{methods}

{kind} BlockingOperations:
    """The same operations, each of which waits for its end."""

{blocking}{groups}'''

_BROKER_GROUP = '''

{kind} {name}Operations:
    """The awaited operations of `broker.{attribute}`."""

    def __init__(self, of: AnyBroker) -> None:
        self.of = of

{methods}

{kind} Blocking{name}Operations:
    """The same operations, each of which waits for its end."""

    def __init__(self, awaited: {name}Operations, loop: AbstractEventLoop) -> None:
        self.awaited = awaited
        self.loop = loop

{blocking}'''

_ADMIN = '''\
"""The operations as methods of `Admin`. Written by `make docs` from `dispatch/operation_table.py`: change that.

`timeout` bounds the wait for the answer; the work continues in the broker.
"""

from __future__ import annotations

{imports}

{kind} Asks(Protocol):
    """The part of `Admin` that the methods need."""

    def perform(self, route: str, given: Fields) -> JsonObject: ...

    def stream(self, route: str, given: Fields) -> Iterator[JsonObject]: ...


{kind} RemoteOperations:
    """The operations of a broker elsewhere. Raises AdminError."""

{methods}{groups}'''

_ADMIN_GROUP = '''

{kind} Remote{name}Operations:
    """The operations of `admin.{attribute}`. Raises AdminError."""

    def __init__(self, of: Asks) -> None:
        self.of = of

{methods}'''


def methods() -> dict[str, str]:
    """Return the text of each generated module, by its path below the package."""
    rows = [row for row in OPERATIONS.values() if "Broker" in row.methods]
    homes = dict(_HOMES)
    plain = [row for row in rows if "." not in row.name]
    awaited = "\n".join(_awaited(row, homes) for row in plain)
    blocking = "".join(f"    {row.name} = waiting(Operations.{row.name})\n" for row in plain)
    groups = "".join(_broker_group(attribute, of_it, homes) for attribute, of_it in _groups(rows))
    now = {
        "diamant.broker.operations.calls.cross_loop": {"waiting"},
        "diamant.broker.perform": {"AnyBroker", "perform"},
    }
    imports = _imports(awaited + groups, homes, now)
    of_broker = _BROKER.format(kind="class", imports=imports, methods=awaited, blocking=blocking, groups=groups)
    rows = [row for row in OPERATIONS.values() if "Admin" in row.methods]
    remote = "\n".join(_remote(row) for row in rows if "." not in row.name)
    groups = "".join(_admin_group(attribute, of_it) for attribute, of_it in _groups(rows))
    of_admin = _ADMIN.format(
        kind="class",
        imports=_imports(f"{remote} {groups} Protocol Fields JsonObject Iterator", _HOMES, {}),
        methods=remote,
        groups=groups,
    )
    return {"broker/operation_methods.py": of_broker, "broker/client/admin_methods.py": of_admin}


def _groups(rows: Iterable[OperationRow]) -> Iterator[tuple[str, list[OperationRow]]]:
    """Yield the operations whose methods are those of an attribute, by its name: `brokers` for `brokers.down`."""
    found: dict[str, list[OperationRow]] = {}
    for row in rows:
        attribute, dot, _ = row.name.partition(".")
        if dot:
            found.setdefault(attribute, []).append(row)
    yield from found.items()


def _broker_group(attribute: str, rows: Iterable[OperationRow], homes: dict[str, str]) -> str:
    name = attribute.title()
    methods = "\n".join(_awaited(row, homes) for row in rows)
    words = [row.name.partition(".")[2] for row in rows]
    blocking = "".join(f"    {word} = waiting({name}Operations.{word})\n" for word in words)
    return _BROKER_GROUP.format(kind="class", name=name, attribute=attribute, methods=methods, blocking=blocking)


def _admin_group(attribute: str, rows: Iterable[OperationRow]) -> str:
    methods = "\n".join(map(_remote, rows))
    return _ADMIN_GROUP.format(kind="class", name=attribute.title(), attribute=attribute, methods=methods)


def _awaited(row: OperationRow, homes: dict[str, str]) -> str:
    function = imported(row.function)
    result = get_annotations(function)["return"]
    for name in _names(result):
        if name in homes:
            continue
        if name in function.__globals__:
            homes[name] = function.__globals__[name].__module__
        elif imports := re.search(
            rf"from (diamant\S+) import .*\b{name}\b", getsource(getmodule(function) or function)
        ):
            homes[name] = imports[1]
    parameters = [*_parameters(row, _TYPES)]
    if row.is_job:
        parameters.append("progress: Progress | None = None")
    of, word = _place(row)
    body = f'return await perform({of}, "{row.name}", locals())'
    doc = f"{row.summary} See `{row.request.partition(':')[2]}`." if parameters != ["*"] else row.summary
    return _method(f"async def {word}", "self: AnyBroker" if of == "self" else "self", parameters, result, doc, body)


def _remote(row: OperationRow) -> str:
    parameters = [one for one in _parameters(row, {**_TYPES, "key": "Key"}) if not one.startswith("timeout:")]
    parameters += ["timeout: Duration | None = None"]
    if row.is_job:
        parameters.append("on_progress: OnProgress | None = None")
    result, call = ("Iterator[JsonObject]", "stream") if row.is_stream else ("JsonObject", "perform")
    of, word = _place(row)
    body = f'return {of}.{call}("{row.route}", locals())'
    return _method(f"def {word}", "self: Asks" if of == "self" else "self", parameters, result, row.summary, body)


def _place(row: OperationRow) -> tuple[str, str]:
    """Return the broker as the method sees it, and the method's name."""
    _, dot, word = row.name.partition(".")
    return ("self.of", word) if dot else ("self", row.name)


def _parameters(row: OperationRow, types: Mapping[str, str]) -> Iterator[str]:
    is_by_name = False
    for param in params_of(row.request_class()):
        if param.is_by_name and not is_by_name:
            is_by_name = True
            yield "*"
        yield _parameter(param, types[param.type])
    if not is_by_name:
        yield "*"


def _parameter(param: Param, kind: str) -> str:
    if param.choices:
        kind = f"Literal[{', '.join(map(_text, param.choices))}]"
    if param.is_required:
        return f"{param.name}: {kind}"
    if param.default is None:
        return f"{param.name}: {kind} | None = None"
    default = _text(param.default) if isinstance(param.default, str) else repr(param.default)
    return f"{param.name}: {kind} = {default}"


def _text(text: str) -> str:
    return f'"{text}"'


def _method(head: str, own: str, parameters: list[str], result: str, doc: str, body: str) -> str:
    """Return a method in the project's format."""
    if parameters[-1] == "*":
        del parameters[-1]
    said = [own, *parameters]
    lines = [f"    {head}({', '.join(said)}) -> {result}:"]
    if len(lines[0]) > MOST_COLUMNS:
        lines = [f"    {head}(", f"        {', '.join(said)}", f"    ) -> {result}:"]
    if len(lines[1:2]) and len(lines[1]) > MOST_COLUMNS:
        lines = [f"    {head}(", *(f"        {one}," for one in said), f"    ) -> {result}:"]
    docs = wrap(doc, MOST_COLUMNS - 14)
    if len(docs) == 1:
        lines.append(f'        """{docs[0]}"""')
    else:
        lines += [f'        """{docs[0]}', *(f"        {one}" for one in docs[1:]), '        """']
    return "".join(f"{line}\n" for line in [*lines, f"        {body}"])


def _names(text: str) -> Iterable[str]:
    word = ""
    for letter in f"{text} ":
        if letter.isalnum() or letter == "_":
            word += letter
        elif word:
            yield word
            word = ""


def _imports(text: str, homes: Mapping[str, str], now: Mapping[str, set[str]]) -> str:
    """Return the import lines, in the project's order. `now`: names by module that are not for type checkers alone."""
    wanted: dict[str, set[str]] = {}
    for name in {*_names(text)} & homes.keys():
        wanted.setdefault(homes[name], set()).add(name)
    later = {module: names for module, names in wanted.items() if module.startswith("diamant.")}
    wanted.setdefault("typing", set()).add("TYPE_CHECKING")
    standard = {module: names for module, names in wanted.items() if module not in later}
    checked = [f"    {line}" for line in _lines(later)]
    parts = [_lines(standard), _lines(now), ["if TYPE_CHECKING:\n", *checked]]
    return "\n".join("".join(lines) for lines in parts if lines)


def _lines(wanted: Mapping[str, set[str]]) -> list[str]:
    def order(name: str) -> tuple[bool, str]:
        return not name.isupper(), name

    return [f"from {module} import {', '.join(sorted(wanted[module], key=order))}\n" for module in sorted(wanted)]


def main() -> None:
    """Write the modules."""
    assert diamant.__file__ is not None
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(diamant.__file__).parent
    for path, text in methods().items():
        (root / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
