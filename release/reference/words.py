"""The generator of docs/reference/words.md: each word that users write as an argument, with its one meaning.

python -m release.reference.words docs/reference/words.md

The words of operations are those of their requests. `FURTHER` has the others; a test finds the ones that are missing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from diamant.broker.dispatch.operation_table import OPERATIONS
from diamant.broker.operations.calls.parameters import Param, params_of

FURTHER = {
    "bootstrap_server": "the broker's Kafka address, as `host:port`",
    "ca": "the CA to trust, as a file in PEM or `system`",
    "command_config": "commands: a client's properties file with Kafka's names",
    "compact": '`create_topic`: `cleanup_policy="compact"`',
    "config": "the `BrokerConfig` of a broker",
    "coroutine": "`call`: what to wait for",
    "data": "`verify`: a directory to check instead of a broker's",
    "directories": "`diamant certify`: all log directories of a broker",
    "dry_run": "`diamant erase` (of another cluster), `diamant person forget`: print the plan, and change nothing",
    "each": "`diamant person forget`: a file with a line `NAME=VALUE` for each of several people, who are the `subjects`",
    "env": "the operating system of a broker, for tests",
    "erasure": "`/healthz`: check the erasure deadlines, too; `diamant certify`: the certificate of an erasure",
    "fields": "`Admin.call`, `diamant fault add`: the fields of the request",
    "fides": "`diamant person check`: a file for the map as a dataset of Fides",
    "file": "`diamant person show`, `suggest`: the file to write",
    "forget": "`diamant restore`: give up an open erasure",
    "function": "`Faults.call`: what to run on the broker's loop",
    "http_url": "the URL of the broker's HTTP port",
    "join": "`diamant certify`: certificates of disks to put into that of the cluster",
    "json": "commands: print the answer as one JSON object",
    "key_base64": "commands: the key in base64",
    "key_file": "commands: a file with the key",
    "key_json": "commands: the key as JSON",
    "key_hex": "commands: the key in hexadecimal",
    "login": "the login for a Kafka address with SASL",
    "max_rate": "`diamant certify`: MB read per second",
    "mechanism": "`client_config`: the mechanism of SASL",
    "method": "`Admin.call`: the HTTP method",
    "offline": "`verify`: check only the signature",
    "on_progress": "`Admin`: is called with the progress of a job",
    "page": "commands: a file for the certificate as an HTML page",
    "partitions": "`create_topic`: their number",
    "password": "`client_config`: the user's password",
    "path": "`Admin.call`: the HTTP path",
    "progress": "`Broker`: a `Progress`, which the operation writes",
    "query": "`Admin.call`: the parameters in the query",
    "ready": "`diamant status`: succeed only if the broker accepts clients",
    "resume": "`diamant erase`: the open erasure to continue",
    "schedule": "`play`: the schedule of compactions",
    "secret": "`verify`: the file with the secret of the digests",
    "segments": "`diamant count`: count each segment",
    "signed": "commands: a file for the signed bytes",
    "spec": "`Faults.add_spec`: the fault",
    "timestamp_ms": "`produce`: the record's timestamp",
    "tls": "the `ssl.SSLContext` of connections",
    "token": "the broker's token",
    "token_file": "a file with the broker's token",
    "user": "the user that logs in",
    "wait_ms": "HTTP: how long a request waits for its job",
    "yes": "`diamant person forget`: do not ask",
}
"""Words of methods, routes and commands that are no arguments of operations."""

_PAGE = """\
# Words

One word for each thing, in Python, over HTTP and in commands. An option has hyphens: `confirm_groups_behind` is
`--confirm-groups-behind`; an argument that is true by default has the option `--no-…`. Durations are texts such as `10m`
or `1h30m`, or seconds as a number. A name with a unit, such as `to_ms`, takes a number in that unit.

<!-- Written by `make docs` from diamant/broker/dispatch/operation_table.py and release/reference/words.py: change those. -->

## Arguments of operations

| word | type | of | meaning |
|---|---|---|---|
"""

_FURTHER = """
## Further words

| word | meaning |
|---|---|
"""


def words() -> dict[str, list[tuple[str, Param]]]:
    """Return the arguments of operations by name: each operation's name with its argument."""
    found: dict[str, list[tuple[str, Param]]] = {}
    for name, row in OPERATIONS.items():
        for param in params_of(row.request_class()):
            found.setdefault(param.name, []).append((name, param))
    return found


def words_page() -> str:
    """Return the page."""
    lines = [_PAGE]
    for word, uses in sorted(words().items()):
        types = " or ".join(dict.fromkeys(param.type for _, param in uses))
        names = ", ".join(f"`{name}`" for name, _ in uses)
        meaning = uses[0][1].doc.replace("|", "\\|").replace("<", "\\<")
        lines.append(f"| `{word}` | {types} | {names} | {meaning} |\n")
    lines.append(_FURTHER)
    lines += [f"| `{word}` | {meaning} |\n" for word, meaning in sorted(FURTHER.items())]
    return "".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(words_page(), encoding="utf-8")
