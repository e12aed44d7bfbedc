"""`diamant group`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import click

from diamant.broker.client.kafka_client import LATEST, KafkaClient, KafkaRefusal, Place
from diamant.broker.client.kafka_group import SHARE, DescribedGroup, KafkaGroup, MemberOfGroup, list_groups
from diamant.broker.commands.cluster.answering import Answer, answering
from diamant.broker.commands.cluster.asking_kafka import json_option, on_cluster
from diamant.broker.commands.cluster.places import place_offsets
from diamant.broker.commands.terminal.completion import group_names, topic_names
from diamant.broker.operation_errors import no_partition
from diamant.protocol.errors import ErrorCode


class _Progress(NamedTuple):
    """A described group, with the offset, end, lag and members of each partition."""

    found: DescribedGroup
    offsets: Mapping[Place, int]
    """The committed offsets, or the start offsets of a share group."""
    ends: Mapping[Place, int]
    lags: Mapping[Place, int]
    owners: Mapping[Place, Sequence[MemberOfGroup]]
    """The members of each partition: at most one, except in a share group."""

    @property
    def places(self) -> list[Place]:
        return sorted(self.offsets.keys() | self.owners.keys())

    @property
    def is_share(self) -> bool:
        return self.found.group_type == SHARE


names_argument = click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)


@click.command("list")
@json_option
@on_cluster
def list_all(client: KafkaClient, as_json: bool) -> None:
    """List the groups with their type (consumer, classic, or another that the cluster supports), protocol and state.

    Exit codes: 0 done; 1 failed; 2 usage; 130 Ctrl-C.
    """
    groups = list_groups(client)
    if as_json:
        words = ("group", "type", "protocol", "state")
        click.echo(json.dumps([dict(zip(words, group, strict=True)) for group in groups]))
    elif groups:
        rows = [("GROUP", "TYPE", "PROTOCOL", "STATE"), *((cell or "-" for cell in group) for group in groups)]
        click.echo("\n".join(_aligned(rows)))


@click.command()
@names_argument
@answering(each="group")
def describe(client: KafkaClient, answer: Answer, names: Sequence[str]) -> None:
    """Show the members of groups, and the committed offset, end, lag and owner of each partition.

    A share group has start offsets instead of committed offsets, and several members can share a partition.
    The end is the log end offset, including open transactions. With --json, prints a list with one object per group.

    Exit codes: 0 done; 1 failed; 2 usage, or no such group; 130 Ctrl-C.
    """
    for name in dict.fromkeys(names):
        with answer.about(name):
            group = KafkaGroup(client, name)
            found = group.describe()
            if found is None:
                raise group.refusal(ErrorCode.GROUP_ID_NOT_FOUND)
            progress = _progress(client, group, found)
            answer.tell(_as_json(progress), _as_text(progress))


@click.command()
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    required=True,
    metavar="TOPIC[:PARTITION]",
    help="A topic or partition to reset; may be repeated.",
    shell_complete=topic_names,
)
@click.option(
    "--to",
    "where",
    required=True,
    metavar="WHERE",
    help="As for `consume -o`: start, end, an offset, -N for N before the end, or @TIME (ISO 8601 or ms); +N is N after the "
    "committed offset. An offset out of range is moved to the nearer end of the log.",
)
@click.option("--dry-run", is_flag=True, help="Only print the offsets that would be committed.")
@answering()
def reset(client: KafkaClient, answer: Answer, name: str, topics: Sequence[str], where: str, dry_run: bool) -> None:
    """Commit new offsets for GROUP, and print the old and the new ones. The group must have no active members.

    A group that does not exist is created.

    Exit codes: 0 done; 1 failed; 2 usage, no such topic, or the group has members; 130 Ctrl-C.
    """
    group = KafkaGroup(client, name)
    group.check_inactive()
    before = group.committed()
    after: dict[Place, int] = {}
    for wanted in topics:
        topic, numbers = _partitions(client, wanted)
        found = place_offsets(client, topic, numbers, where, committed=False, before=before)
        after.update({(topic, number): offset for number, offset in found.items()})
    if not dry_run:
        group.commit(after)
    rows = [
        {"topic": topic, "partition": number, "before": before.get((topic, number)), "after": offset}
        for (topic, number), offset in sorted(after.items())
    ]
    lines = [
        f"{topic}-{number}: {before.get((topic, number), '-')} → {after[topic, number]}"
        for topic, number in sorted(after)
    ]
    outcome = "none: dry run" if dry_run else "reset"
    answer.tell({"group": name, "partitions": rows}, "\n".join(lines), outcome=outcome)


@click.command()
@names_argument
@answering(each="group")
def delete(client: KafkaClient, answer: Answer, names: Sequence[str]) -> None:
    """Delete groups and their committed offsets. A group that cannot be deleted does not stop the others from being deleted.

    Exit codes: 0 done; 1 failed; 2 usage, no such group, or it has members; 130 Ctrl-C.
    """
    for name in dict.fromkeys(names):
        with answer.about(name):
            KafkaGroup(client, name).delete()
            answer.tell({"group": name}, outcome="deleted")


def _partitions(client: KafkaClient, wanted: str) -> tuple[str, list[int]]:
    """Return the topic and the partitions of TOPIC[:PARTITION]."""
    topic, _, number = wanted.partition(":")
    numbers = [partition.number for partition in client.topic(topic).partitions]
    if not number and topic == wanted:
        return topic, numbers
    if not (number.isascii() and number.isdigit()):
        raise ValueError(f"--topic {wanted}: expected TOPIC, or TOPIC:PARTITION with a number")
    if int(number) not in numbers:
        raise ValueError(no_partition(topic, int(number), len(numbers)))
    return topic, [int(number)]


def _ends(client: KafkaClient, places: Iterable[Place]) -> dict[Place, int]:
    """Return the log end offsets of the partitions that exist and have a leader."""
    wanted: dict[str, set[int]] = {}
    for topic, number in places:
        wanted.setdefault(topic, set()).add(number)
    found = {}
    for topic, numbers in wanted.items():
        try:
            partitions = client.topic(topic).partitions
        except KafkaRefusal as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            continue  # The topic was deleted after the commit.
        led = [partition.number for partition in partitions if partition.number in numbers and partition.leader >= 0]
        found.update({(topic, one): end for one, end in client.offsets(topic, led, LATEST).items()})
    return found


def _progress(client: KafkaClient, group: KafkaGroup, found: DescribedGroup) -> _Progress:
    owners: dict[Place, list[MemberOfGroup]] = {}
    for member in found.members:
        for topic, ones in member.partitions.items():
            for one in ones:
                owners.setdefault((topic, one), []).append(member)
    if found.group_type == SHARE:
        places = group.share_places()
        offsets = {place: one.start_offset for place, one in places.items() if one.start_offset is not None}
        lags = {place: one.lag for place, one in places.items() if one.lag is not None}
        return _Progress(found, offsets, _ends(client, offsets.keys() | owners.keys()), lags, owners)
    offsets = group.committed()
    ends = _ends(client, offsets.keys() | owners.keys())
    lags = {place: ends[place] - offset for place, offset in offsets.items() if place in ends}
    return _Progress(found, offsets, ends, lags, owners)


def _as_json(progress: _Progress) -> Mapping[str, object]:
    found, owners = progress.found, progress.owners

    def members_of(place: Place) -> Mapping[str, object]:
        ids = [member.member_id for member in owners.get(place, ())]
        return {"members": ids} if progress.is_share else {"member": ids[0] if ids else None}

    return {
        "group": found.name,
        "type": found.group_type,
        "protocol": found.protocol_type,
        "state": found.state,
        "assignor": found.assignor,
        "coordinator": found.coordinator,
        "members": [
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.host,
                "partitions": {topic: sorted(numbers) for topic, numbers in sorted(member.partitions.items())},
            }
            for member in found.members
        ],
        "partitions": [
            {
                "topic": place[0],
                "partition": place[1],
                "start" if progress.is_share else "committed": progress.offsets.get(place),
                "end": progress.ends.get(place),
                "lag": progress.lags.get(place),
                **members_of(place),
            }
            for place in progress.places
        ],
    }


def _as_text(progress: _Progress) -> str:
    found = progress.found
    count = len(found.members)
    title = (
        f"{found.name}: {found.group_type}, {found.state}, {count} member{'' if count == 1 else 's'}, "
        f"assignor {found.assignor or '-'}, coordinator {found.coordinator}"
    )
    headings = (
        "TOPIC",
        "PARTITION",
        "START" if progress.is_share else "COMMITTED",
        "END",
        "LAG",
        "MEMBER",
        "HOST",
        "CLIENT",
    )

    def rows() -> Iterator[Sequence[object]]:
        for place in progress.places:
            numbers = (one.get(place) for one in (progress.offsets, progress.ends, progress.lags))
            shown = (*place, *numbers)
            for member in progress.owners.get(place, (None,)):
                yield (*shown, *_who(member))
        for member in found.members:
            if not any(member.partitions.values()):
                yield (None, None, None, None, None, *_who(member))

    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows()]
    return "\n".join([title, *(_aligned([headings, *cells]) if cells else ())])


def _who(member: MemberOfGroup | None) -> Sequence[str | None]:
    return (None, None, None) if member is None else (member.member_id, member.host, member.client_id)


def _aligned(rows: Iterable[Iterable[str]]) -> list[str]:
    table = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
