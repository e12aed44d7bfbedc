"""`diamant broker`: the brokers of a process that runs several, for tests of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.completion import topic_names
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.failures import duration
from diamant.broker.commands.terminal.lazy import LazyGroup
from diamant.broker.commands.terminal.remote import asking
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.duration import duration_text

_SHOWN = 20
"""The maximum number of moved leaders to print."""

_ID = click.argument("broker", type=click.IntRange(min=0), metavar="ID")


class _Place(click.ParamType["tuple[str, int]"]):
    """TOPIC:PARTITION, converted to a topic and a number."""

    name = "TOPIC:PARTITION"

    def convert(
        self, value: Any, _parameter: click.Parameter | None, _context: click.Context | None
    ) -> tuple[str, int]:
        topic, colon, partition = str(value).rpartition(":")
        if not colon or not topic or not partition.isascii() or not partition.isdigit():
            self.fail(f"{value!r}: expected TOPIC:PARTITION, such as orders:0")
        return topic, int(partition)


def _duration_or_0(text: str) -> int:
    return 0 if text == "0" else duration(text)


_PARTITION = click.argument("partition", type=_Place(), metavar="TOPIC:PARTITION")


@click.group(cls=LazyGroup)
def broker() -> None:
    """Take brokers of a process (diamant start --brokers 3) down and up, and move leaders, to test clients."""


@broker.command(name="list")
@asking
def show(asked: Asked) -> None:
    """List the brokers with their state."""
    found = asked.admin.brokers.list(timeout=asked.timeout_s)
    asked.show(found, lambda console: _print_brokers(console, found["brokers"]))


@broker.command()
@_ID
@click.option("--hard", is_flag=True, help="Keep the port open but answer nothing, like a host that hangs.")
@asking
def down(broker: int, hard: bool, asked: Asked) -> None:
    """Take broker ID down: leadership moves to in-sync replicas, its clients are disconnected, and its port is closed."""
    report = asked.admin.brokers.down(broker, hard=hard, timeout=asked.timeout_s)
    _show(asked, report, f"broker {broker} {'answers nothing' if hard else 'is down'}")


@broker.command()
@_ID
@click.option("--lag", "lag_ms", type=duration, default=0, help="How long replicas stay out of sync, such as 30s.")
@asking
def up(broker: int, lag_ms: int, asked: Asked) -> None:
    """Bring broker ID back, on its port."""
    report = asked.admin.brokers.up(broker, lag=lag_ms / 1000, timeout=asked.timeout_s)
    _show(asked, report, f"broker {broker} is up, {f'and in sync in {duration_text(lag_ms)}' if lag_ms else 'in sync'}")


@broker.command()
@_ID
@asking
def fence(broker: int, asked: Asked) -> None:
    """Take broker ID out of the cluster. It still answers, but leads no partition. `up` brings it back."""
    _show(asked, asked.admin.brokers.fence(broker, timeout=asked.timeout_s), f"broker {broker} is fenced")


@broker.command()
@_PARTITION
@_ID
@asking
def move(partition: tuple[str, int], broker: int, asked: Asked) -> None:
    """Make broker ID the leader of a partition. The broker must be an in-sync replica."""
    _show(asked, asked.admin.brokers.move(*partition, broker, timeout=asked.timeout_s))


@broker.command()
@click.argument("topic", required=False, shell_complete=topic_names)
@click.option("--seed", type=click.IntRange(min=0), help="A seed; the same seed repeats the random choices.")
@asking
def shuffle(topic: str | None, seed: int | None, asked: Asked) -> None:
    """Move the leadership of each partition of TOPIC, or of all topics, to another in-sync replica, chosen at random."""
    _show(asked, asked.admin.brokers.shuffle(topic, seed=seed, timeout=asked.timeout_s))


@broker.command()
@_ID
@click.argument("by", nargs=-1, required=True, metavar="TIME|N records")
@asking
def lag(broker: int, by: tuple[str, ...], asked: Asked) -> None:
    """Make broker ID lag as a follower, for example: diamant broker lag 2 500ms, or lag 2 100 records. lag 2 0 ends the lag.

    Clients that fetch from the broker see an earlier high watermark.
    """
    found = asked.admin.brokers.lag(broker, " ".join(by), timeout=asked.timeout_s)
    asked.show(found, lambda console: _print_brokers(console, [found]))


@broker.command()
@_ID
@click.argument("by_ms", type=_duration_or_0, metavar="TIME")
@asking
def slow(broker: int, by_ms: int, asked: Asked) -> None:
    """Delay each request to broker ID, for example: diamant broker slow 2 300ms. slow 2 0 ends the delay."""
    found = asked.admin.brokers.slow(broker, by_ms / 1000, timeout=asked.timeout_s)
    asked.show(found, lambda console: _print_brokers(console, [found]))


@broker.command()
@_PARTITION
@_ID
@click.argument("offset", type=click.IntRange(min=0))
@asking
def unclean(partition: tuple[str, int], broker: int, offset: int, asked: Asked) -> None:
    """Make broker ID the leader of a partition, and remove the batch that contains OFFSET and all later batches from the log.

    Like Kafka, removes whole batches, so records before OFFSET in the same batch are lost, too. Prints the new end of the log and
    the number of lost records.
    """
    _show(asked, asked.admin.brokers.unclean(*partition, broker, offset, timeout=asked.timeout_s))


def _show(asked: Asked, report: Mapping[str, Any], state: str = "") -> None:
    asked.show(report, lambda console: _print_report(console, report, state))


def _print_report(console: Console, report: Mapping[str, Any], state: str) -> None:
    if state:
        console.print(state)
    moved = report["moved"]
    for one in moved[:_SHOWN]:
        console.print(_moved_text(one), markup=False)
    if len(moved) > _SHOWN:
        console.print(f"and {len(moved) - _SHOWN:,} more")
    if "end_offset" in report:
        console.print(f"the log ends at offset {report['end_offset']}; lost records: {report['lost_record_count']:,}")
    console.print(
        f"new leaders or leader epochs: {len(moved):,}; partitions whose in-sync replicas changed: "
        f"{report['changed_isr_count']:,}; cut connections: {report['cut_connection_count']:,}"
    )


def _moved_text(move: Mapping[str, Any]) -> str:
    old, new = (
        f"broker {leader}" if leader >= 0 else "no broker" for leader in (move["old_leader"], move["new_leader"])
    )
    led = f"is led by {new}, before by {old}" if new != old else f"is led by {new}, as before"
    return f"{move['topic']}:{move['partition']} {led}; leader epoch {move['leader_epoch']}"


def _print_brokers(console: Console, brokers: Sequence[Mapping[str, Any]]) -> None:
    names = ("id", "state", "rack", "address", "leads", "in sync", "replicas", "lag", "delay")
    texts = {"state", "rack", "address", "lag", "delay"}
    rows = [
        [
            *(str(one["id"]), _state_text(one), one["rack"] or ""),
            *(", ".join(one["addresses"]), *(f"{one[name]:,}" for name in _COUNTS)),
            *(one["lag"] or "", f"{one['delay_ms']} ms" if one["delay_ms"] else ""),
        ]
        for one in brokers
    ]
    print_table([TableColumn(name, is_text=name in texts) for name in names], rows, console=console, is_ruled=False)


def _state_text(broker: Mapping[str, Any]) -> str:
    behind = broker["until_in_sync_ms"]
    in_sync = f", in sync in {duration_text(behind)}" if behind else ""
    controller = ", controller" if broker["is_controller"] else ""
    return f"{broker['state']}{in_sync}{controller}"


_COUNTS = ("leader_count", "in_sync_count", "replica_count")
