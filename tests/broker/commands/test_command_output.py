"""Printed output: readable at 80 columns, never truncated, with singular and plural, and without repetitions."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest

from diamant.broker.commands.admin import compact, count, explain, snapshot, status
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.progress_text import progress_text
from diamant.broker.commands.terminal.remote import print_reasons
from diamant.cleaner.rules.record_kinds import SHOWN
from diamant.progress import Reading

MS = 1_767_225_600_000


def console(width: int = 80) -> Console:
    """Return a console that writes to a text."""
    return Console(file=StringIO(), width=width)


def text(of: Console) -> str:
    """Return the printed text."""
    assert isinstance(of.file, StringIO)
    return of.file.getvalue()


def gate(words: str, until_ms: int | None = None) -> dict[str, Any]:
    """One gate."""
    return {"kind": "active-segment", "text": words, "until_ms": until_ms, "bytes_more": None, "detail": {}}


def record(offset: int, **fields: Any) -> dict[str, Any]:
    """One record of an explanation."""
    return {
        "offset": offset,
        "timestamp": MS,
        "segment": "00000000000000000000.log",
        "status": "superseded",
        "superseded_by": offset + 1,
        "gates": [gate("active segment: closed after 1,073,741,404 more bytes, or by segment.ms=604800000", MS + 5000)],
        "goes_ms": MS + 5000,
        "leaves_disk_ms": MS + 65_000,
        "bound": "exact",
        "change": {"text": "compact it now", "command": "compact t --partition 0", "configs": {"segment.ms": "7"}},
        "groups_behind": [],
        **fields,
    }


def explanation(*records: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return an explanation of one partition."""
    partition = {
        "topic": "t",
        "partition": 0,
        "cleanup_policy": "compact",
        "log_start_offset": 0,
        "log_end_offset": 3,
        "first_dirty_offset": 0,
        "segments": 1,
        "bytes": 249,
        "next_round_ms": None,
        "gates": [],
        "change": None,
        "records": list(records),
        "records_left_out": 0,
        "problems": [],
        **fields,
    }
    return {
        "topic": "t",
        "now_ms": MS,
        "key": {"text": "k"} if records else None,
        "offset": None,
        "partitions": [partition],
    }


def test_an_explanation_at_80_columns() -> None:
    """Every line fits; continuation lines are indented to their text, and nothing is cut."""
    at = console()
    explain.show_explanation(at, explanation(record(0), record(7, status="live", superseded_by=None)), False, None)
    lines = text(at).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line != line.rstrip()] == []
    joined = " ".join(text(at).split())
    assert "kept by active segment: closed after 1,073,741,404 more bytes, or by segment.ms=604800000, until" in joined
    assert "to remove now compact it now diamant compact t --partition 0 or set segment.ms=7 on the topic" in joined
    start = next(line for line in lines if line.startswith("  kept by"))
    after = lines[lines.index(start) + 1]
    assert len(after) - len(after.lstrip()) == start.index("active")


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ({"text": "it's 42"}, """--key 'it'"'"'s 42'"""),
        ({"hex": "00ff"}, "--key-hex 00ff"),
        ({"text": ""}, "--key-hex ''"),
        (None, "--key KEY"),
    ],
)
def test_commands_name_the_key_that_was_asked_for(key: dict[str, str] | None, option: str) -> None:
    """The key is quoted for a shell; without a key there is a placeholder."""
    change = {"text": "have it erased", "command": "erase t --key KEY --reason REASON", "configs": {}}
    found = explanation(record(0, change=change)) | {"key": key}
    explain.complete_commands(found, Asked("127.0.0.1:9092", None, 1000, as_json=False))
    assert change["command"] == f"erase t {option} --reason REASON"


def test_commands_are_in_one_piece() -> None:
    """A command is never wrapped, at any terminal width."""
    at = console(40)
    command = "erase a-long-name-of-a-topic --key a-long-name-of-a-key --reason REASON"
    change = {"text": "or erase it, which takes a few more words", "command": command, "configs": {}}
    explain.show_explanation(at, explanation(record(0, change=change)), False, None)
    assert f"diamant {command}\n" in text(at)


def test_commands_name_the_broker_that_was_asked() -> None:
    """Commands name a broker other than the default, so that they can be pasted."""
    at = console()
    change = {"text": "compact it now", "command": "compact t", "configs": {}}
    found = explanation(record(0), record(1, change=None), change=change)
    explain.complete_commands(found, Asked("127.0.0.1:19092", None, 1000, as_json=False))
    explain.show_explanation(at, found, False, None)
    assert "diamant compact t --partition 0 -b 127.0.0.1:19092" in " ".join(text(at).split())
    assert change["command"] == "compact t -b 127.0.0.1:19092"


def test_consecutive_records_share_equal_reasons() -> None:
    """Consecutive records with equal reasons share one list of them."""
    at = console()
    explain.show_explanation(at, explanation(record(0), record(1), record(2, goes_ms=None)), False, None)
    assert text(at).count("kept by") == 2
    assert text(at).count("offset ") == 3
    assert text(at).count("• ") == 0


@pytest.mark.parametrize(("count", "words"), [(1, "1 record of the key"), (2, "2 records of the key")])
def test_singular_and_plural(count: int, words: str) -> None:
    """One record is no records."""
    at = console()
    explain.show_explanation(at, explanation(*(record(index) for index in range(count))), False, None)
    assert words in text(at)


def test_the_rows_that_are_left_out_are_counted() -> None:
    """The first rows and the last one are shown, the others counted."""
    at = console()
    records = [record(index, goes_ms=MS + index) for index in range(10)]
    explain.show_explanation(at, explanation(*records), False, 4)
    assert [line.split(":")[0] for line in text(at).splitlines() if line.startswith("offset")] == [
        "offset 0", "offset 1", "offset 2", "offset 9",
    ]  # fmt: skip
    assert "... and 6 more before the last one (--all, --json)" in text(at)


def report(**fields: Any) -> dict[str, Any]:
    """Return a report of `compact`."""
    partition = {
        "partition": 0,
        "first_dirty_offset": 0,
        "cleaned_to_offset": 10_000,
        "rounds": 1,
        "runners": ["inline"],
        "segments_before": 1,
        "segments_after": 1,
        "bytes_before": 348_600,
        "bytes_after": 34_860,
        "records_before": 10_000,
        "records_after": 1_000,
        "markers_before": 3,
        "markers_after": 2,
        "removed": {"superseded": 9_000},
        "kept": {"live": 999, "tombstones": 1, "markers": 2, "open_transaction": 3},
        "held_back": None,
    }
    return {
        "topic": "users",
        "until": "clean",
        "is_clean": True,
        "is_reached": True,
        "duration_ms": 61.4,
        "horizon_ms": None,
        "max_counted_bytes": 1 << 30,
        "held_text": None,
        "partitions": [partition],
        **fields,
    }


@pytest.mark.parametrize("width", [40, 80, 140])
def test_a_report_of_compact(width: int) -> None:
    """A report fits the terminal; a wide one has offsets and segments, too, and counts have units."""
    at = console(width)
    compact.show_report(at, report())
    shown = text(at)
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= width
    assert "users: clean after 61.4 ms" in shown
    assert "348,600 → 34,860" in shown
    assert "…" not in shown
    assert ("offsets" in shown) == (width == 140)
    for expected in ("999 live", "1 tombstone", "2 markers", "3 held back", "superseded"):
        assert expected in shown


def test_a_report_of_a_partition_that_was_not_counted() -> None:
    """Numbers that nobody has counted are question marks, and the bound and the command that counts are named."""
    at, found = console(140), report()
    [one] = found["partitions"]
    for name in ("records_before", "records_after", "markers_before", "markers_after", "kept"):
        one[name] = None
    compact.show_report(at, found)
    assert "? → ?" in text(at)
    assert "?: not counted, since it would take reading more than 1 GiB; diamant count --exact reads all" in text(at)


def test_names_on_a_narrow_terminal() -> None:
    """IDs and names are printed whole, for copying."""
    at = console(40)
    made = {"id": "1795718409848-d7c9da", "created_ms": MS, "size_bytes": 1_234_567}
    snapshot._print(at, [made])
    shown = text(at)
    assert "1795718409848-d7c9da" in shown
    assert "1,234,567" in shown
    assert "…" not in shown


def test_the_status_of_a_broker_with_many_idle_partitions() -> None:
    """Idle partitions of internal topics are counted, all others shown."""

    def partition(topic: str, **fields: Any) -> dict[str, Any]:
        return {
            "topic": topic,
            "partition": 0,
            "dirty_ratio": 0.0,
            "must_clean_ratio": 0.0,
            "compaction_lag_ms": 0,
            "overdue_ms": 0,
            "last_cleaned_ms": None,
            "rounds": 0,
            "records_removed": 0,
            "markers_removed": 0,
            "uncleanable_reason": None,
            "quarantined": [],
            **fields,
        }

    partitions = [partition("__consumer_offsets", partition=index) for index in range(50)]
    partitions += [
        partition("__transaction_state", rounds=3),
        partition("users"),
        partition("bad", uncleanable_reason="x" * 100),
    ]
    found = {
        "version": "1", "cluster_id": "c", "node_id": 1, "is_stopping": False, "listeners": ["127.0.0.1:9092"],
        "http_address": None, "uptime_s": 3.5, "topics": 1, "partitions": 2, "offline": [], "future_holds": [],
        "clock": {"kind": "system", "now_ms": MS, "ahead_ms": 0, "is_frozen": False},
        "cleaner": {
            "mode": "prompt", "is_enabled": True, "uncleanable_partitions": 1, "compacted_partitions": 53,
            "must_clean_partitions": 2, "must_clean_ratio": 0.1539,
            "partitions": partitions,
            "in_progress": [
                {"topic": "users", "partition": 0, "runner": "process", "progress":
                 Reading("", 1 << 30, 4 << 30, "bytes", 1e7, 322.1)._asdict()},
            ],
        },
    }  # fmt: skip
    at = console()
    status._print(at, found, [], 50)
    shown = text(at)
    assert "and 50 partitions of internal topics with nothing to clean yet" in shown
    assert all(name in shown for name in ("__transaction_state-0", "users-0", "bad-0"))
    assert "__consumer_offsets" not in shown
    assert "1 topic, 2 partitions" in shown
    assert "cleaner: mode prompt, " in shown
    assert "in progress: users-0 by process: 25 %, 1.0 GiB of 4.0 GiB, 9.5 MiB/s, 5m 22s left" in shown
    assert "1 uncleanable, 2 past max.compaction.lag.ms (15 % of the bytes)" in shown.replace("\n", " ")
    assert shown.replace("\n", "").count("x") >= 100, "the reason is not cut off"
    at = console(60)
    status._print(at, found, [], 50)
    assert "__transaction_state-0" in text(at), "a narrow terminal has fewer columns, and whole names"
    at = console()
    found["cleaner"] |= {"mode": "kafka", "kafka_version": "4.3"}
    status._print(at, found, [], None)
    assert text(at).count("__consumer_offsets") == 50
    assert "cleaner: mode kafka 4.3, " in text(at)


@pytest.mark.parametrize(
    ("done", "total", "unit", "rate_per_s", "left_s", "text"),
    [
        (0, None, "bytes", None, None, "scanning ..."),
        (0, 4000, "bytes", None, None, "scanning ..."),
        (1000, 4000, "bytes", None, None, "scanning 25 %, 1000 B of 3.9 KiB"),
        (1000, None, "bytes", None, None, "scanning 1000 B"),
        (1000, None, "bytes", 2048.4, None, "scanning 1000 B, 2.0 KiB/s"),
        (1 << 30, 4 << 30, "bytes", 1e7, 322.1, "scanning 25 %, 1.0 GiB of 4.0 GiB, 9.5 MiB/s, 5m 22s left"),
        (4000, 4000, "bytes", 1e3, 0.0, "scanning 100 %, 3.9 KiB of 3.9 KiB, 1000 B/s, 0s left"),
        (10, 40, "ms", 5.0, 6.0, "scanning 25 %, 6s left"),
        (1000, None, "steps", 5.0, None, "scanning 1,000 steps"),
    ],
)
def test_how_far_a_job_is(
    done: int, total: int | None, unit: str, rate_per_s: float | None, left_s: float | None, text: str
) -> None:
    """Progress shows the stage and, once known, the share, the rate and the time left."""
    fields = {"stage": "scanning", "done": done, "total": total, "unit": unit}
    assert progress_text({**fields, "rate_per_s": rate_per_s, "left_s": left_s}) == text


@pytest.mark.parametrize("width", [60, 80])
def test_a_count_prints_bounds_sums_and_problems(width: int) -> None:
    """Unknown numbers are printed as bounds, several partitions with a sum, and unreadable parts as problems."""
    known = {name: {"least": 12_000, "most": 12_000} for name in SHOWN}
    unknown = {**known, "live": {"least": 0, "most": 12_000}}
    found = {
        "topic": "users",
        "is_exact": False,
        "why_not_exact": "more than 1 GiB of a topic are counted only on request",
        **unknown,
        "partitions": [
            {"partition": 0, **known, "problems": []},
            {"partition": 1, **unknown, "problems": ["0.log at 7: the batch's CRC is wrong"]},
        ],
    }
    at = console(width)
    count._print(at, found)
    shown = text(at)
    assert max(len(line.rstrip()) for line in shown.splitlines() if "CRC" not in line and "GiB" not in line) <= width
    for expected in ("12,000", "1 GiB", "to", "all", "--exact", "partition 1: 0.log at 7: the batch's CRC is wrong"):
        assert expected in shown


def test_names_of_files_in_the_way_do_nothing_to_the_terminal() -> None:
    """File names are escaped, including control characters and bytes that are not UTF-8."""
    shown = console()
    problems = [{"file": name, "reason": "of nobody"} for name in ("\x1b[2Jcertified", "\udcff.log", "größe.log")]
    print_reasons(shown, {"not_certified": [{"problems": problems}]})
    assert text(shown).splitlines() == [
        "\\x1b[2Jcertified: of nobody",
        "\\udcff.log: of nobody",
        "größe.log: of nobody",
    ]
