"""Strips of segments in the terminal."""

from __future__ import annotations

from io import BytesIO, StringIO, TextIOWrapper

import pytest
from click.testing import CliRunner
from rich.console import Console

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.commands.terminal.strip import MAX_STRIPS, DrawnPartition, DrawnSegment, draw


def drawn(partitions: list[DrawnPartition], *, width: int = 60) -> list[str]:
    """The lines."""
    file = StringIO()
    draw(Console(file=file, width=width, force_terminal=False), partitions)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_segments_are_as_wide_as_they_are_large() -> None:
    """To one scale, divided by kinds, with what the characters mean below."""
    large = DrawnPartition("0", [DrawnSegment(3000, {"live": 1, "superseded": 3}), DrawnSegment(1000, {"live": 5})])
    small = DrawnPartition("1", [DrawnSegment(1000, {"live": 1, "tombstones": 1})])
    first, second, legend = drawn([large, small, DrawnPartition("2", [])])
    assert first == f"0  {'█' * 9}{'░' * 26}│{'█' * 12}  3.9 KiB"
    assert second.split() == ["1", "█" * 6 + "▒" * 6, "1000", "B"]
    assert legend == "█ live  ▒ tombstones  ░ superseded"


def test_what_was_not_counted_is_told() -> None:
    """A piece of which a segment was not counted shows that, and narrow segments share a piece."""
    counts = [None if number == 500 else {"live": 1} for number in range(1000)]
    [line, legend] = drawn([DrawnPartition("p", [DrawnSegment(10, one) for one in counts])])
    assert sorted({*line.split()[1]}) == ["·", "█"]
    assert line.count("·") == 1
    assert legend == "█ live  · not counted"


def test_letters_where_there_are_no_blocks() -> None:
    """In a terminal that knows ASCII alone."""
    file = TextIOWrapper(BytesIO(), encoding="ascii")
    draw(Console(file=file, width=30), [DrawnPartition("0", [DrawnSegment(10, {"live": 1, "tombstones": 1})])])
    file.seek(0)
    assert file.read().split() == ["0", "L" * 11 + "T" * 10, "10", "B", "L", "live", "T", "tombstones"]


@pytest.mark.parametrize("count", [0, MAX_STRIPS + 3])
def test_the_largest_are_drawn(count: int) -> None:
    """Of many partitions; nothing of none."""
    lines = drawn([DrawnPartition(str(size), [DrawnSegment(size, {"live": 1})]) for size in range(1, count + 1)])
    assert len(lines) == (MAX_STRIPS + 2 if count else 0)
    if count:
        assert (lines[0].split()[0], lines[-1]) == ("4", "and 3 smaller partitions")


def test_compact_explain_and_stats_draw_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Before and after a compaction, as they are, and of a directory without a broker."""
    path = tmp_path_factory.mktemp("data")
    run = CliRunner().invoke
    with Broker(data_dir=str(path), diamant_http_listen="127.0.0.1:0") as broker:
        broker.create_topic("users", compact=True, internal_segment_bytes=300, min_cleanable_dirty_ratio=1)
        for number in range(20):
            broker.produce("users", "v", key=f"k{number % 2}")
        at = ("users", "--bootstrap-server", broker.bootstrap_servers)
        text = run(main, ["explain", *at]).output
        assert "█ live  ░ superseded" in text
        text = run(main, ["compact", *at]).output
        assert "0 before  ░" in text
        assert "0 after   █" in text
    text = run(main, ["log", "stats", str(path)]).output
    assert "users-0  █" in text
