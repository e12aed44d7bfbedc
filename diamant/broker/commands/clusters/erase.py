"""`diamant erase` on any Kafka cluster: the plan, the run, the outcome, and what to do about an erasure that stays open."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from diamant.broker.clusters import for_admin
from diamant.broker.clusters.cluster_look import now_ms
from diamant.broker.clusters.erasing import Agree
from diamant.broker.clusters.register import Register
from diamant.broker.commands.terminal import remote
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.failures import note
from diamant.broker.commands.terminal.files import time_text, visible
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.operation_errors import EXIT_DONE, EXIT_FAILED, EXIT_NOT_SO, EXIT_NOTHING
from diamant.cleaner.evidence.certificates.cluster_claims import KEY_UNREADABLE, UNREADABLE
from diamant.json_types import JsonObject
from diamant.words import counted

MAX_SHOWN = 20
EXIT_TERMINATED = 128 + signal.SIGTERM


def erase_elsewhere(
    asked: Asked,
    file: str | None,
    page: str | None,
    is_agreed: Callable[..., bool],
    *,
    dry_run: bool,
    **fields: Any,
) -> NoReturn:
    """Erase a key from topics of a cluster, print the outcome, and exit."""
    _offer_restore(asked)
    agree = _agreeing(asked, is_agreed, is_confirmed=fields.pop("confirm_groups_behind"))
    with ending_by_signal(asked):
        found = for_admin.erase(asked.admin, dry_run=dry_run, agree=agree, **fields, **asked.waiting)
    if dry_run:
        asked.show(found, lambda console: _print_plan(console, asked, found))
        is_found = found["tombstones"] or found["tombstones_found"]
        sys.exit(EXIT_NOT_SO if found["missing"] else EXIT_DONE if is_found else EXIT_NOTHING)
    _end(asked, found, file, page)


def compact_elsewhere(asked: Asked, show_report: Callable[[Console, JsonObject], object], **fields: Any) -> NoReturn:
    """Compact a topic of a cluster, print the report, and exit."""

    def tell_now(text: str) -> None:
        asked.end_progress()
        note(text)

    _offer_restore(asked)
    with ending_by_signal(asked):
        found = for_admin.compact(asked.admin, **fields, on_note=tell_now, **asked.waiting)

    def show(console: Console) -> None:
        show_report(console, found)
        for name, reason in [*found["missing"].items()][1:]:  # The report begins with the first reason.
            console.print(f"{name}: {reason}", style="red", markup=False, soft_wrap=True)
        print_not_as_before(console, asked, found, found["work_id"])

    asked.show(found, show)
    sys.exit(EXIT_DONE if found["is_reached"] and not found["not_put_back"] else EXIT_NOT_SO)


def resume_elsewhere(
    asked: Asked,
    erasure_id: str,
    file: str | None,
    page: str | None,
    is_agreed: Callable[..., bool],
    *,
    now: bool,
    is_confirmed: bool,
) -> NoReturn:
    """Continue an open erasure, print the outcome, and exit."""
    agree = _agreeing(asked, is_agreed, is_confirmed=is_confirmed)
    with ending_by_signal(asked):
        found = for_admin.resume(asked.admin, erasure_id, now=now, agree=agree, **asked.waiting)
    _end(asked, found, file, page)


def _agreeing(asked: Asked, is_agreed: Callable[..., bool], *, is_confirmed: bool) -> Agree:
    def agree(behind: Mapping[str, list[str]], unknown: list[str]) -> bool:
        asked.end_progress()
        return is_agreed({"groups_behind": behind, "groups_not_known": unknown}, is_asked=not is_confirmed)

    return agree


@contextmanager
def ending_by_signal(asked: Asked) -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C, so that lowered configurations are restored, and report what is unfinished."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(EXIT_TERMINATED)

    began_ms, before = now_ms(), signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException:
        asked.end_progress()
        for work in Register().listed()[0]:
            if work.began_ms >= began_ms and work.changes:
                names = ", ".join(work.changes)
                note(f"configurations of {names} are not put back; to try again: {asked.command('restore', work.id)}")
            elif work.began_ms >= began_ms:
                again = asked.command("erase", "--resume", work.id)
                note(f"all configurations are put back; erasure {work.id} is open: {again}")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _offer_restore(asked: Asked) -> None:
    register = Register()
    for work in register.listed()[0]:
        if work.changes and not register.is_in_progress(work):
            note(
                f"{work.verb} {work.id} was killed and has left configurations of {', '.join(work.changes)} lowered; to put them "
                f"back: {asked.command('restore', work.id)}"
            )


def _end(asked: Asked, found: JsonObject, file: str | None, page: str | None) -> NoReturn:
    is_written = found["certificate"] is None or remote.write_outputs(found, file, page)
    asked.show(found, lambda console: _print(console, asked, found))
    if found["is_now_refused"]:
        words = ("erase", "--resume", found["id"], "--tombstones", "now", "--confirm-groups-behind")
        note(
            "declined, so the tombstones stay until delete.retention.ms is over; what else is done is said above. To remove them "
            f"sooner, by new tombstones in their place: {asked.command(*words)}"
        )
    is_kept = found["outcome"]["tombstones_now"] and found["state"] == UNREADABLE
    if found["missing"] or found["written_since"] or found["is_now_refused"] or found["not_put_back"] or is_kept:
        sys.exit(EXIT_NOT_SO)
    if not is_written:
        sys.exit(EXIT_FAILED)
    sys.exit(EXIT_NOTHING if found["state"] == "nothing-matched" else EXIT_DONE)


def _print_plan(console: Console, asked: Asked, found: Mapping[str, Any]) -> None:
    rows = [
        [f"{one['topic']}-{one['partition']}", str(one["values"]), ids(one["replicas"]), ids(one["in_sync"])]
        for one in found["partitions"]
        if one["values"]
    ]
    console.print("[bold]nothing was changed[/bold]: this is what an erasure would do")
    _print_open(console, asked, found["open"])
    _print_missing(console, found["missing"])
    if found["missing"]:
        console.print(
            f"{counted(len(found['missing']), 'replica')} could not be read, and may hold values of the key: an erasure would "
            "stay open until they can",
            soft_wrap=True,
        )
    elif found["tombstones_found"] and not rows:
        console.print("Only tombstones of the key were found. An erasure would remove those whose time has passed.")
    elif not rows:
        _print_nothing_found(console, {one["topic"]: None for one in found["partitions"]})
    if not rows:
        return
    heads = ("partition", "found", "replicas", "in sync")
    print_table([TableColumn(head, is_text=True) for head in heads], rows, console=console, is_ruled=False)
    for topic, values in found["lower"].items():
        lowered = ", ".join(f"{name}={value}" for name, value in values.items())
        console.print(escape(f"lower for the time of it on {topic}: {lowered}"), soft_wrap=True)
    written, read = counted(found["tombstones"], "tombstone"), counted(found["replicas_to_read"], "replica")
    console.print(f"write {written}; close the active segments by: {found['roll']}")
    console.print(f"read {read} whole")


def _print(console: Console, asked: Asked, found: Mapping[str, Any]) -> None:
    outcome = found["outcome"]
    if found["state"] == "nothing-matched":
        _print_nothing_found(console, outcome["topics"])
    if found["state"] == KEY_UNREADABLE and not any(one["values"] for one in outcome["partitions"]):
        console.print("No value of the key was found, only tombstones. They are gone now.")
    path = f", certificate {escape(found['certificate_path'])}" if found["certificate_path"] else ""
    console.print(f"[bold]{found['state']}[/bold], erasure {found['id']}{path}", soft_wrap=True)
    missing = {name.partition("@")[0] for name in found["missing"]}
    rows = []
    for one in outcome["partitions"]:
        name = f"{one['topic']}-{one['partition']}"
        if one["values"] or one["tombstone_offset"] is not None or name in missing:
            offset = "-" if one["tombstone_offset"] is None else str(one["tombstone_offset"])
            state = "open" if name in missing else found["state"]
            rows.append([name, str(one["values"]), offset, str(one["below_offset"]), ids(one["replicas"]), state])
    if rows:
        heads = ("partition", "found", "tombstone at", "certified below", "replicas", "state")
        print_table([TableColumn(head, is_text=True) for head in heads], rows, console=console, is_ruled=False)
    _print_missing(console, found["missing"])
    for one in found["written_since"][:MAX_SHOWN]:
        place = f"{one['topic']}-{one['partition']} at offset {one['offset']}"
        console.print(f"[red]The key was written again: {escape(place)}. That record was not erased.[/red]")
    places: dict[str, set[int]] = {}
    for one in found["certificate"]["elsewhere"]:
        places.setdefault(f"{one['topic']}-{one['partition']}", set()).add(one["offset"])
    for name, offsets in [*places.items()][:MAX_SHOWN]:
        told = ", ".join(map(str, sorted(offsets)[:MAX_SHOWN]))
        console.print(f"Other records of {escape(name)} hold the key or one of its values and stay: {told}")
    print_not_as_before(console, asked, found, found["id"])
    if found["missing"]:
        again = asked.command("erase", "--resume", found["id"])
        console.print(
            f"The erasure is open. To continue it, with these brokers (topic-partition@broker) up: {again}",
            soft_wrap=True,
        )
    elif found["state"] == UNREADABLE:
        again, due_ms = asked.command("erase", "--resume", found["id"]), found["next_due_ms"]
        until = f" until {time_text(due_ms)}; to remove them then" if (due_ms or 0) > now_ms() else "; to remove them"
        console.print(f"The tombstones name the key{until}: {again}", soft_wrap=True)
    _print_open(console, asked, found["open"])


def print_not_as_before(console: Console, asked: Asked, found: Mapping[str, Any], work_id: str) -> None:
    """Print the configurations that were not restored: those that other clients have changed, and those still lowered."""
    for sentence in found["left"]:
        console.print(sentence, style="yellow", markup=False, soft_wrap=True)
    for topic, reason in found["not_put_back"].items():
        text = f"{topic}: configurations are still lowered: {reason}"
        console.print(visible(text), style="red", markup=False, soft_wrap=True)
    if found["not_put_back"]:
        again = asked.command("restore", work_id)
        console.print(f"To put them back, once that is resolved: {again}", markup=False, soft_wrap=True)


def _print_open(console: Console, asked: Asked, erasures: Iterable[str]) -> None:
    for one in erasures:
        again = asked.command("erase", "--resume", one)
        console.print(f"An earlier erasure of this key is open: {one}. To continue it: {again}", soft_wrap=True)


def _print_missing(console: Console, missing: Mapping[str, str]) -> None:
    for name, reason in [*missing.items()][:MAX_SHOWN]:
        console.print(f"[red]{escape(visible(f'{name}: {reason}'))}[/red]", soft_wrap=True)


def _print_nothing_found(console: Console, topics: Iterable[str]) -> None:
    console.print(
        f"[yellow][bold]NOTHING WAS FOUND[/bold] under this key in {escape(', '.join(topics))}, so nothing is to be erased. Is "
        "the key spelled as the producer writes it (for Avro or other bytes: --key-hex)?[/yellow]"
    )


def ids(brokers: list[int]) -> str:
    """Return broker ids, comma-separated, for a table cell."""
    return ",".join(map(str, brokers))
