"""Check which data directories of some releases of Apache Kafka and of Diamant each of them opens, and that the way back is open.

`pytest --long` runs it where launchers are named (test_releases.py). Launchers are those of check_with_kafka.py, with one more
subcommand, `format DIR PORT`, which only formats DIR.

    python tests/interop/check_releases_with_kafka.py --kafka ./kafka-4.3 --newer-kafka ./kafka-4.4 --older-kafka ./kafka-3.9 \
        --older-diamant env-0.1/bin/diamant --older-diamant env-0.2/bin/diamant

Each directory is once used and once only formatted. "Opened" means: the records, read committed and uncommitted, the offsets of
groups, also of a share group, transactions, ACLs, quotas, SCRAM users, configurations and the levels of features are those of
before, and the same transactional ids and groups go on. Then whoever made the directory opens it again, with all that came since;
also after a refusal. There Diamant ends the erasures and the requests of persons that were pending. Into a directory that was
only formatted, all of that is written, and read back. Where it is refused, the reason is the expected one. The last lines are the
table.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException
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
from programs import Checks, NotStarted, Programs, command_line, free_port, run_parts, wait_until

from diamant.storage.env.env import RealEnv
from diamant.storage.kraft.features import (
    FIRST_WITH_HOST_RANGES,
    GROUP_VERSION,
    METADATA_VERSION,
    RELEASES,
    SHARE_VERSION,
)
from diamant.storage.kraft.format import format_directory
from tests.broker.groups.share.share_requests import (
    ACCEPT,
    RELEASE,
    ShareMemberClient,
    acquired,
    configure,
    wait_for_coordinator,
)
from tests.broker.wire import API_VERSIONS, METADATA, WireClient
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
WITHOUT_AUTHORIZER = SETTINGS[2:]
"""Of earlier versions of Diamant."""
OFFSET_FETCH = 9
SHARERS, SHARED = "sharers", 4
LEVEL_OF_3_9 = 21
"""The `metadata.version` of a directory of Kafka 3.9 (3.9-IV0)."""
MADE_BY = {"0.1.0": 25}
"""The levels of directories that earlier versions of Diamant make, if not that of Kafka 4.3."""
PEOPLE = {"version": 1, "topics": {"people": {"identity": {"customer_id": "key"}, "do": "erase-key"}}}
UNCLEANED = {"min.compaction.lag.ms": str(1 << 50)}
RANGE = "10.0.0.0/8"
REFUSAL = re.compile(
    r"No MetadataVersion with feature level \d+|featureLevel=\d+\), but this controller only supports versions [\d-]+"
    r"|feature metadata\.version is at level \d+, supported are \d+ to \d+"
)
"""Kafka's, of which it is one or the other depending on which of its threads comes first, and Diamant's."""
_KEPT: list[object] = []
"""Clients, to the end of the process."""
SETTLED_S = 60
"""After its start, a broker may need a moment for its coordinators."""


class Node(NamedTuple):
    """A broker of one of the releases: how to run it on a directory, how to only format one, and what it is able to open."""

    name: str
    run: Callable[[Path], AbstractContextManager[kinds.Running]]
    max_level: int
    """Of `metadata.version`."""
    format: Callable[[Path], object] | None = None
    makes: int = 0
    """The level of its directories; 0: the highest."""


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
    if broker.http:
        write_pending(broker)
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
    kinds.send(broker, "codecs", [kinds.Row(None, f"later {n}", n % 2) for n in range(30)])  # for the next time


def apart(look: Callable[[kinds.Running], _Found], broker: kinds.Running) -> _Found:
    """Run in a process of its own, whose clients do not live to see another broker at their port."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(look, broker).result()


def levels(broker: kinds.Running) -> dict[str, int]:
    """Return the finalized levels that a broker tells its clients."""
    answer = broker.wire(API_VERSIONS, 4, {"client_software_name": "check", "client_software_version": "1"})
    return {one.name: int(one.max_version_level) for one in answer.finalized_features}


def state(broker: kinds.Running) -> dict[str, Any]:
    """Return all that has to be the same in every broker; None is what a broker does not have."""
    admin = AdminClient(broker.servers)
    anything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    acls = None
    with suppress(KafkaException):
        bindings = admin.describe_acls(anything).result(kinds.DONE_S)
        acls = (
            sorted(f"{one.principal} {one.permission_type.name} {one.name} from {one.host}" for one in bindings) or None
        )
    return kinds.look(broker) | {
        "acls": acls,
        "cluster id": admin.list_topics(timeout=kinds.DONE_S).cluster_id,
        METADATA_VERSION: levels(broker)[METADATA_VERSION],
    }


async def share(broker: kinds.Running) -> int:
    """Let a new member of the share group accept some records and release the others; the offset of the first."""
    async with WireClient(broker.kafka) as wire:
        await wait_for_coordinator(wire, SHARERS)
        await configure(wire, SHARERS, share_auto_offset_reset="earliest")
        topic = (await wire.call(METADATA, 12, {"topics": [{"name": "codecs"}]})).topics[0]
        member = ShareMemberClient(wire, SHARERS, "codecs", topic.topic_id, str(uuid4()))
        await member.wait_until_assigned()
        while not (ranges := acquired(await member.fetch())):
            pass
        first = ranges[0][0]
        await member.acknowledge(
            [
                (start, end, [ACCEPT if at < first + SHARED else RELEASE for at in range(start, end + 1)])
                for start, end, _ in ranges
            ]
        )
        await member.heartbeat(-1)
        return int(first)


def write_pending(broker: kinds.Running) -> None:
    """An erasure that waits for its tombstone, a person that is being forgotten, and a request that is open."""
    admin = AdminClient(broker.servers)
    kinds.wait(admin.create_topics([NewTopic("people", 1, 1, config={"cleanup.policy": "compact"})]))
    kinds.send(broker, "people", [kinds.Row(f"customer-{n}", f"about {n}") for n in range(9)])
    kinds.erase(broker, "customer-1", "people")
    person = {"identifiers": {"customer_id": "customer-2"}, "map": PEOPLE, "reason": "a request"}
    broker.call("POST", "/v1/person/forget?wait_ms=60000", person)
    broker.call("POST", "/v1/person/requests", {"identifiers": {"customer_id": "customer-3"}, "kind": "show"})


def end_pending(broker: kinds.Running) -> list[str]:
    """Let the tombstones' time pass: the erasure and the person's request end, the other one stays open."""
    broker.call("POST", "/v1/clock/advance?wait_ms=60000", {"by": "8d"})
    with suppress(RuntimeError):
        wait_until(lambda: not broker.call("GET", "/v1/certificates")["unfinished"], "all is erased", SETTLED_S)
    unfinished = broker.call("GET", "/v1/certificates")["unfinished"]
    states = sorted(one["state"] for one in broker.call("GET", "/v1/person/requests")["requests"])
    return [f"still pending: {unfinished}"] * bool(unfinished) + [f"requests: {states}"] * (
        states != ["done", "received"]
    )


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
        return states[-1] == states[-2] if expected is None else not faults_of(expected, states[-1])

    with suppress(RuntimeError):
        wait_until(is_settled, "the state is the expected one", SETTLED_S)
    return states[-1]


def faults_of(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What is not the same."""
    return [
        f"{name}: expected {expected[name]}, got {found[name]}"[:500]
        for name in found
        if found[name] != expected[name] and None not in (found[name], expected[name])
    ]


def written(broker: kinds.Running) -> dict[str, Any]:
    """Write, and return the state after that."""
    write(broker)
    return settled(broker) | {"shared": share_on(broker)}


def share_on(broker: kinds.Running) -> int | None:
    """Where a share group begins, before it accepts some records; None if the level of features has none."""
    return asyncio.run(share(broker)) if levels(broker).get(SHARE_VERSION) else None


def open_used(broker: kinds.Running, expected: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Read all that was written, and go on; what differs, and the state then."""
    faults = faults_of(expected, settled(broker, expected))
    go_on(broker)
    found = settled(broker)
    # Three transactions; and, behind the one that was open, that of the offsets.
    more = 9 + 3 * (expected["transactions"]["open"] == "Ongoing" and "offsets" in expected["transactions"])
    before, after = (len(one["committed"]["orders-0"]) for one in (expected, found))
    ended = dict.fromkeys(expected["transactions"], "CompleteCommit")
    if after != before + more:
        faults.append(f"after three transactions more, {after - before} records were read, not {more}")
    if found["transactions"] != ended:
        faults.append(f"transactions: expected {ended}, got {found['transactions']}")
    found["shared"], shared = share_on(broker), expected["shared"]
    if None not in (found["shared"], shared) and found["shared"] != shared + SHARED:
        faults.append(f"the share group begins at {found['shared']}, not at {shared + SHARED}")
    return faults, found


def open_formatted(broker: kinds.Running) -> list[str]:
    """Write into a new directory and read it back."""
    expected = written(broker)
    counts = [sum(map(len, expected[name].values())) for name in ("committed", "uncommitted")]
    right = [143, 152 if "offsets" in expected["transactions"] else 149]
    faults = [] if counts == right else [f"read committed and uncommitted: {counts} records, not {right}"]
    faults += [f"{name}: none" for name in ("groups", "acls", "quotas", "users") if not expected[name]]
    go_on(broker)
    return faults


class Directory(NamedTuple):
    """What a node has made, and what was in it; None if it was only formatted."""

    maker: Node
    path: Path
    expected: dict[str, Any] | None

    def __str__(self) -> str:
        return f"{self.maker.name}, {'only formatted' if self.expected is None else 'used'}"


def made(maker: Node, path: Path, *, is_used: bool) -> Directory:
    """Let a node use a new directory, or only format it."""
    if not is_used:
        assert maker.format is not None
        maker.format(path)
        return Directory(maker, path, None)
    with maker.run(path) as broker:
        return Directory(maker, path, apart(written, broker))


def opened(checks: Checks, directory: Directory, node: Node) -> str:
    """Open a copy of a directory by a node, and again by the one that made it; the cell of the table."""
    maker, path, expected = directory
    copy = path.with_name(f"{path.name}-by-{node.name.replace(' ', '-')}")
    shutil.copytree(path, copy)
    what = f"{directory}, by {node.name}"
    may_refuse = expected is not None and maker.makes > node.max_level
    try:
        cell, expected = _opened_by(checks, what, node, copy, expected, may_refuse=may_refuse)
        if expected is not None and node is not maker:
            with maker.run(copy) as broker:
                faults, _ = apart(partial(open_used, expected=expected), broker)
                faults += apart(end_pending, broker) if broker.http else []
            checks.report(f"{what}, and back", faults)
            cell += f", and back: {'; '.join(faults)}" if faults else ", and back"
        return cell
    except Exception as error:
        checks.report(what, [f"{type(error).__name__}: {error}"])
        return f"FAILED: {error!r}"
    finally:
        shutil.rmtree(copy)


def _opened_by(
    checks: Checks, what: str, node: Node, copy: Path, expected: dict[str, Any] | None, *, may_refuse: bool
) -> tuple[str, dict[str, Any] | None]:
    try:
        with node.run(copy) as broker:
            found = levels(broker)
            if expected is None:
                faults, after = apart(open_formatted, broker), None
            else:
                faults, after = apart(partial(open_used, expected=expected), broker)
    except NotStarted as refusal:
        reason = REFUSAL.search(refusal.log)
        checks.report(what, [] if may_refuse and reason else [f"{refusal}: {refusal.log[-1000:]}"], "refused")
        return f"refused: {reason[0] if reason else refusal}", expected
    shown = ", ".join(f"{name} {found.get(name, 0)}" for name in (METADATA_VERSION, GROUP_VERSION))
    checks.report(what, faults + (["it was to be refused"] if may_refuse else []), shown)
    if after is not None and expected is not None:
        after = {name: expected[name] if value is None else value for name, value in after.items()}
    return (f"DIFFERS: {'; '.join(faults)}" if faults else f"opened, {shown}"), after


def kafka_node(release: str, programs: Programs, level: int) -> Node:
    """Yield a Kafka."""

    @contextmanager
    def run(path: Path) -> Iterator[kinds.Running]:
        with programs.kafka_broker(path, configs=SETTINGS) as servers:
            yield kinds.Running(servers, "")

    def formatted(path: Path) -> object:
        return programs.tool("format", str(path), str(free_port(programs.port)))

    return Node(f"Kafka {release}", run, level, formatted, level)


def diamant_node(
    name: str, programs: Programs, settings: Sequence[str], level: int, makes: int, **formats: Any
) -> Node:
    """Yield a Diamant: the present one has HTTP beside its port, and a clock that can be moved."""

    @contextmanager
    def run(path: Path) -> Iterator[kinds.Running]:
        is_present = level == RELEASES[NEWER][METADATA_VERSION]
        own = (f"diamant.certificate.key.file={path.parent}/keys/key", "diamant.clock=manual")
        with programs.diamant_broker(
            path, configs=(*settings, *own), has_http=is_present, may_warn=not is_present
        ) as servers:
            host, _, port = servers.rpartition(":")
            yield kinds.Running(servers, f"http://{host}:{int(port) + 1}" if is_present else "")

    return Node(name, run, level, makes=makes, **formats)


def nodes(programs: Programs, options: argparse.Namespace) -> tuple[list[Node], list[Node]]:
    """Return who makes directories, and who opens them."""

    def with_launcher(name: str, kafka: list[str] = programs.kafka, diamant: list[str] = programs.diamant) -> Programs:
        (programs.work / name).mkdir()
        return Programs(kafka, diamant, programs.work / name, programs.port, programs.checks)

    older_level, newer_level = (RELEASES[release][METADATA_VERSION] for release in RELEASES)
    others = [
        kafka_node(OLDER, programs, older_level),
        kafka_node(NEWER, with_launcher("newer", options.newer_kafka), newer_level),
    ]
    if options.older_kafka:
        others.append(kafka_node("3.9", with_launcher("3.9", options.older_kafka), LEVEL_OF_3_9))
    for command in options.older_diamant:
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        own = with_launcher(version, diamant=command)
        level = MADE_BY.get(version, older_level)
        others.append(diamant_node(f"Diamant {version}", own, WITHOUT_AUTHORIZER, older_level, level))
    diamants = [
        diamant_node(
            f"Diamant for {release}", programs, (*SETTINGS, f"diamant.release.version={release}"), newer_level,
            features[METADATA_VERSION],
            format=lambda path, features=features: format_directory(RealEnv(), str(path), features=features),
        )
        for release, features in RELEASES.items()
    ]  # fmt: skip
    return [*others, *diamants], [*others, diamants[0]]


def check(programs: Programs, options: argparse.Namespace) -> None:
    """Make directories, open each by every broker, print the table."""
    makers, openers = nodes(programs, options)
    table = ["| directory | " + " | ".join(node.name for node in openers) + " |", "|---" * (len(openers) + 1) + "|"]
    for maker in makers:
        for is_used in (True, False) if maker.format else (True,):
            row = f"{maker.name}, {'used' if is_used else 'only formatted'}"
            chosen = [node for node in openers if options.only in f"{row}, by {node.name}"]
            if chosen:
                directory = made(maker, programs.work / row.replace(", ", "-").replace(" ", "-"), is_used=is_used)
                cells = {node: opened(programs.checks, directory, node) for node in chosen}
                table.append(f"| {row} | {' | '.join(cells.get(node, '') for node in openers)} |")
                print(table[-1], flush=True)
    print("\n".join(table))


def main() -> int:
    """Run the checks; the exit code."""
    parser = command_line(__doc__)
    launcher = "launcher of Apache Kafka "
    parser.add_argument("--newer-kafka", required=True, type=shlex.split, metavar="COMMAND", help=launcher + NEWER)
    parser.add_argument("--older-kafka", type=shlex.split, metavar="COMMAND", help=f"{launcher}3.9")
    parser.add_argument(
        "--older-diamant", type=shlex.split, metavar="COMMAND", action="append", default=[],
        help="an earlier Diamant; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="of the cells, those with this text: ', used, by Kafka 3.9'"
    )
    options = parser.parse_args()
    return run_parts(options, {"releases": partial(check, options=options)})


if __name__ == "__main__":
    sys.exit(main())
