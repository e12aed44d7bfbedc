"""Check which data directories of two releases of Apache Kafka, and of Diamant for either, each of the three opens.

Run by hand; pytest does not collect it. Both launchers are those of check_with_kafka.py, with one more subcommand,
`format DIR PORT`, which only formats DIR.

    python tests/interop/check_releases_with_kafka.py --kafka ./kafka-4.3 --newer-kafka ./kafka-4.4

Each directory is once used and once only formatted. "Opened" means: the records, read committed and uncommitted, the offsets of
groups, transactions, ACLs, quotas, SCRAM users, configurations and the levels of features are those of before, and the same
transactional ids and groups go on. Into a directory that was only formatted, all of that is written, and read back. Where it is
refused, the reason is the expected one. The last lines are the table.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from programs import NotStarted, Programs, command_line, free_port, run_parts, wait_until

from diamant.storage.env.env import RealEnv
from diamant.storage.kraft.features import FIRST_WITH_HOST_RANGES, METADATA_VERSION, RELEASES
from diamant.storage.kraft.format import format_directory
from tests.broker.wire import API_VERSIONS
from tests.interop import golden_directory as kinds

_Found = TypeVar("_Found")
OLDER, NEWER = RELEASES
SETTINGS = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS",
    "offsets.topic.num.partitions=2",
    "transaction.state.log.num.partitions=2",
    "group.initial.rebalance.delay.ms=0",
)
OFFSET_FETCH = 9
GROUP_VERSION = "group.version"
UNCLEANED = {"min.compaction.lag.ms": str(1 << 50)}
RANGE = "10.0.0.0/8"
REFUSAL = re.compile(
    r"No MetadataVersion with feature level \d+|featureLevel=\d+\), but this controller only supports versions [\d-]+"
)
"""Which of the two it is depends on which of Kafka's threads comes first."""
_KEPT: list[object] = []
"""Clients, to the end of the process."""
SETTLED_S = 60
"""After its start, a broker may need a moment for its coordinators."""


class Node(NamedTuple):
    """A broker for one of the releases: how to run it on a directory, and how to only format one."""

    name: str
    release: str
    run: Callable[[Path], AbstractContextManager[str]]
    format: Callable[[Path], object]


def write(broker: kinds.Running) -> None:
    """Something of everything that is not of Diamant alone."""
    admin = AdminClient(broker.servers)
    kinds.wait(
        admin.create_topics(
            [
                NewTopic(name, count, 1, config=kinds.FOREVER | UNCLEANED | kinds.CONFIGS.get(name, {}))
                for name, count in kinds.PARTITIONS.items()
            ]
        )
    )
    for codec in kinds.CODECS:
        rows = [kinds.Row(f"{codec}-{n}", f"{codec} {n}", n % 2, (("codec", codec.encode()),)) for n in range(10)]
        kinds.send(broker, "codecs", rows, **{"compression.type": codec, "enable.idempotence": True})
    kinds.send(broker, "users", kinds.customers("first", range(50)))
    kinds.send(broker, "mails", [kinds.Row(None, f"mail {n}") for n in range(40)])
    alive = [kinds.transact(broker, end, "orders", end) for end in ("commit", "abort", "open")]
    if levels(broker).get(GROUP_VERSION):
        alive += kinds.write_groups(broker)
    else:  # a release that does not see the features beside the voters, in a directory that was only formatted
        alive.append(kinds.read_in_group(broker, "codecs", 20, group_id="readers"))
    kinds.write_settings(broker, admin)
    if levels(broker)[METADATA_VERSION] >= FIRST_WITH_HOST_RANGES:
        binding = AclBinding(
            ResourceType.TOPIC, "users", ResourcePatternType.PREFIXED, "User:carol", RANGE,
            AclOperation.WRITE, AclPermissionType.DENY,
        )  # fmt: skip
        kinds.wait(admin.create_acls([binding]))
    for client in alive:
        if isinstance(client, Consumer):
            client.close()
    _KEPT.extend(alive)


def go_on(broker: kinds.Running) -> None:
    """Let the transactional ids and a group of `write` go on; the transaction that was left open is aborted by that."""
    for transactional_id in ("commit", "abort", "open"):
        _KEPT.append(kinds.transact(broker, transactional_id, "orders", "commit"))
    kinds.read_in_group(broker, "codecs", 30, group_id="readers").close()


def apart(look: Callable[[kinds.Running], _Found], broker: kinds.Running) -> _Found:
    """Run in a process of its own, whose clients do not live to see another broker at their port."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(look, broker).result()


def levels(broker: kinds.Running) -> dict[str, int]:
    """The finalized levels that a broker tells its clients."""
    answer = broker.wire(API_VERSIONS, 4, {"client_software_name": "check", "client_software_version": "1"})
    return {one.name: int(one.max_version_level) for one in answer.finalized_features}


def state(broker: kinds.Running) -> dict[str, Any]:
    """All that has to be the same in every broker."""
    admin = AdminClient(broker.servers)
    anything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    bindings = admin.describe_acls(anything).result(kinds.DONE_S)
    return kinds.look(broker) | {
        "acls": sorted(f"{one.principal} {one.permission_type.name} {one.name} from {one.host}" for one in bindings),
        "cluster id": admin.list_topics(timeout=kinds.DONE_S).cluster_id,
        METADATA_VERSION: levels(broker)[METADATA_VERSION],
    }


def wait_for_coordinators(broker: kinds.Running) -> None:
    """Wait until the offsets of the groups can be fetched: librdkafka's admin client crashes if they cannot yet."""
    wait_until(
        lambda: (
            not any(
                broker.wire(OFFSET_FETCH, 5, {"group_id": name, "topics": None}).error_code for name in kinds.GROUPS
            )
        ),
        "the coordinators are there",
        SETTLED_S,
    )


def settled(broker: kinds.Running, expected: dict[str, Any] | None = None) -> dict[str, Any]:
    """The state as soon as it can be read, and is the expected one, or does not change any more; after a while as it is."""
    wait_for_coordinators(broker)
    states: list[dict[str, Any]] = [{}]

    def is_settled() -> bool:
        states.append(state(broker))
        return states[-1] == (states[-2] if expected is None else expected)

    with suppress(RuntimeError):
        wait_until(is_settled, "the state is the expected one", SETTLED_S)
    return states[-1]


def faults_of(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What is not the same."""
    return [
        f"{name}: expected {expected[name]}, got {found[name]}"[:500]
        for name in expected
        if found[name] != expected[name]
    ]


def written(broker: kinds.Running) -> dict[str, Any]:
    """Write, and return the state after that."""
    write(broker)
    return settled(broker)


def open_used(broker: kinds.Running, expected: dict[str, Any]) -> list[str]:
    """Read all that was written, and go on."""
    faults = faults_of(expected, settled(broker, expected))
    go_on(broker)
    found = settled(broker)
    before, after = (len(one["committed"]["orders-0"]) for one in (expected, found))
    ends = {
        "commit": "CompleteCommit",
        "abort": "CompleteCommit",
        "open": "CompleteCommit",
        "offsets": "CompleteCommit",
    }
    # The three transactions, and the one behind that which was open.
    if after != before + 12:
        faults.append(f"after three transactions more, {after - before} records were read, not 12")
    if found["transactions"] != ends:
        faults.append(f"transactions: expected {ends}, got {found['transactions']}")
    return faults


def open_formatted(broker: kinds.Running) -> list[str]:
    """Write into a new directory and read it back."""
    expected = written(broker)
    counts = [sum(map(len, expected[name].values())) for name in ("committed", "uncommitted")]
    right = [143, 152 if "offsets" in expected["transactions"] else 149]
    faults = [] if counts == right else [f"read committed and uncommitted: {counts} records, not {right}"]
    faults += [f"{name}: none" for name in ("groups", "acls", "quotas", "users") if not expected[name]]
    go_on(broker)
    return faults


def opened(
    checks: Programs,
    what: str,
    node: Node,
    directory: Path,
    look: Callable[[kinds.Running], list[str]],
    *,
    may_refuse: bool,
) -> str:
    """Open a copy of a directory; the cell of the table."""
    copy = directory.with_name(f"{directory.name}-by-{node.name.replace(' ', '-')}")
    shutil.copytree(directory, copy)
    try:
        with node.run(copy) as servers:
            broker = kinds.Running(servers, "")
            found = levels(broker)
            shown = ", ".join(f"{name} {found.get(name, 0)}" for name in (METADATA_VERSION, GROUP_VERSION))
            faults = apart(look, broker)
        checks.checks.report(what, faults + (["it was to be refused"] if may_refuse else []), shown)
        return f"DIFFERS: {'; '.join(faults)}" if faults else f"opened, {shown}"
    except NotStarted as refusal:
        reason = REFUSAL.search(refusal.log)
        checks.checks.report(what, [] if may_refuse and reason else [str(refusal)], "refused")
        return f"refused: {reason[0] if reason else refusal}"
    except Exception as error:
        checks.checks.report(what, [f"{type(error).__name__}: {error}"])
        return f"FAILED: {error!r}"
    finally:
        shutil.rmtree(copy)


def check(programs: Programs, newer_kafka: list[str]) -> None:
    """Make eight directories, open each by three brokers, print the table."""
    (programs.work / "newer").mkdir()
    newer = Programs(newer_kafka, programs.diamant, programs.work / "newer", programs.port, programs.checks)
    kafkas = [
        Node(
            f"Kafka {release}",
            release,
            partial(each.kafka_broker, configs=SETTINGS),
            lambda path, each=each: each.tool("format", str(path), str(free_port(each.port))),
        )
        for release, each in ((OLDER, programs), (NEWER, newer))
    ]
    diamants = [
        Node(
            f"Diamant {release}",
            release,
            partial(programs.diamant_broker, configs=(*SETTINGS, f"diamant.release.version={release}")),
            lambda path, release=release: format_directory(RealEnv(), str(path), features=RELEASES[release]),
        )
        for release in RELEASES
    ]
    table = ["| directory | " + " | ".join(node.name for node in (*kafkas, diamants[0])) + " |", "|---|---|---|---|"]
    for maker in (*kafkas, *diamants):
        for is_used in (True, False):
            directory = programs.work / f"{maker.name.replace(' ', '-')}-{'used' if is_used else 'formatted'}"
            if is_used:
                with maker.run(directory) as servers:
                    look = partial(open_used, expected=apart(written, kinds.Running(servers, "")))
            else:
                maker.format(directory)
                look = open_formatted
            row = f"{maker.name}, {'used' if is_used else 'only formatted'}"
            cells = [
                opened(
                    programs, f"{row}, by {node.name}", node, directory, look,
                    may_refuse=is_used and (maker.release, node.release) == (NEWER, OLDER) and node in kafkas,
                )
                for node in (*kafkas, diamants[0])
            ]  # fmt: skip
            table.append(f"| {row} | {' | '.join(cells)} |")
    print("\n".join(table))


def main() -> int:
    """Run the checks; the exit code."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--newer-kafka", required=True, type=shlex.split, metavar="COMMAND", help=f"launcher of Apache Kafka {NEWER}"
    )
    options = parser.parse_args()
    return run_parts(options, {"releases": partial(check, newer_kafka=options.newer_kafka)})


if __name__ == "__main__":
    sys.exit(main())
