"""The generator of docs/reference/access.md, which prints the permissions for APIs and verbs.

python -m release.reference.access [FILE]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from diamant.broker.acl import type_word
from diamant.broker.dispatch.api_row import Row, Whole
from diamant.broker.dispatch.api_table import TABLE
from diamant.broker.dispatch.operation_table import OPERATIONS
from diamant.broker.http.serving.authorization import OF_PAGES
from diamant.broker.security.authorization.permissions import Permission
from diamant.protocol.wire.apis import API_NAMES

_PAGE = """\
# Who needs what

The permissions that clients need when `authorizer.class.name` is set, and the responses to a denial.
[Say who may do what](../how-to/acls.md) shows how to grant them.

<!-- Written by `make docs` from release/reference/access.py and the tables in dispatch/: change those. -->

- [Kafka's APIs](#kafkas-apis)
- [Diamant's own verbs](#diamants-own-verbs)

READ, WRITE, DELETE and ALTER on a resource imply DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS. The denial of a topic
that a client may not DESCRIBE does not reveal whether the topic exists.

## Kafka's APIs

As in Kafka 4.3 and 4.4. *Whole*: without the permission, no part of the request is executed, and the response has the error
code in the same places as Kafka's.

| API | needs | a denial |
|---|---|---|
"""

_VERBS = """
## Diamant's own verbs

They apply to HTTP, the page, and the commands that query a broker. All needs of a verb must be met; needs on topics are checked
for each topic of the request.

| verb | needs |
|---|---|
"""


def access_page() -> str:
    """Return the page."""
    lines = [_PAGE]
    for key, row in sorted(TABLE.items()):
        for needed, denial in _rows(row):
            lines.append(f"| {API_NAMES[key]} | {needed} | {denial} |\n")
    lines.append(_VERBS)
    for verb, permissions in sorted(
        {**{one.name: one.permissions for one in OF_PAGES}, **dict(_of_operations())}.items()
    ):
        lines.append(f"| {verb} | {', '.join(map(_text, permissions))} |\n")
    return "".join(lines)


def _of_operations() -> Iterator[tuple[str, tuple[Permission, ...]]]:
    for row in OPERATIONS.values():
        yield row.name, row.permissions
        for name, permission in row.permissions_with.items():
            yield f"{row.name} with `{name}`", (*row.permissions, permission)


def _rows(row: Row) -> Iterator[tuple[str, str]]:
    for whole in row.whole:
        yield _of_whole(whole), f"whole: {whole.permission.denial.name}"
    for permission, denial in row.items.items():
        yield _text(permission), denial
    if not row.permissions:
        yield "nothing", f"none: {row.is_open}"


def _of_whole(whole: Whole) -> str:
    text = _text(whole.permission)
    if whole.or_permission is not None:
        text += f" or {_text(whole.or_permission)}"
    if whole.first_version:
        text += f", from version {whole.first_version} on"
    if whole.last_version < Whole(whole.permission).last_version:
        text += f", up to version {whole.last_version}"
    return text


def _text(permission: Permission) -> str:
    return f"{permission.operation.name} {type_word(permission.resource)}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(access_page())
    else:
        print(access_page(), end="")
