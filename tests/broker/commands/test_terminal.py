"""Terminal output: strips of segments, wide tables, progress, and hints for values."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import BytesIO, StringIO, TextIOWrapper

import pytest
from click.testing import CliRunner

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.commands.settings.value_hint import with_hint
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.broker.commands.terminal.strip_text import MAX_STRIPS, DrawnPartition, draw
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.broker.operations.figures.strip_values import DrawnSegment
from diamant.storage.config_key import ConfigError


def drawn(partitions: list[DrawnPartition], *, width: int = 60) -> list[str]:
    """Return the lines."""
    file = StringIO()
    draw(Console(file=file, width=width), partitions)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_segments_are_as_wide_as_they_are_large() -> None:
    """Strips share one scale, are divided by kinds, and have a legend."""
    large = DrawnPartition("0", [DrawnSegment(3000, {"live": 1, "superseded": 3}), DrawnSegment(1000, {"live": 5})])
    small = DrawnPartition("1", [DrawnSegment(1000, {"live": 1, "tombstones": 1})])
    first, second, legend = drawn([large, small, DrawnPartition("2", [])])
    assert first == f"0  {'█' * 9}{'░' * 26}│{'█' * 12}  3.9 KiB"
    assert second.split() == ["1", "█" * 6 + "▒" * 6, "1000", "B"]
    assert legend == "█ live  ▒ tombstones  ░ superseded"


def test_the_strip_marks_uncounted_segments() -> None:
    """A bin with an uncounted segment shows that, and narrow segments share a bin."""
    counts = [None if number == 500 else {"live": 1} for number in range(1000)]
    [line, legend] = drawn([DrawnPartition("p", [DrawnSegment(10, one) for one in counts])])
    assert sorted({*line.split()[1]}) == ["·", "█"]
    assert line.count("·") == 1
    assert legend == "█ live  · not counted"


def test_letters_where_there_are_no_blocks() -> None:
    """An ASCII terminal gets letters."""
    file = TextIOWrapper(BytesIO(), encoding="ascii")
    draw(Console(file=file, width=30), [DrawnPartition("0", [DrawnSegment(10, {"live": 1, "tombstones": 1})])])
    file.seek(0)
    assert file.read().split() == ["0", "L" * 11 + "T" * 10, "10", "B", "L", "live", "T", "tombstones"]


@pytest.mark.parametrize("count", [0, MAX_STRIPS + 3])
def test_the_largest_are_drawn(count: int) -> None:
    """Only the largest partitions are drawn, and none of an empty list."""
    lines = drawn([DrawnPartition(str(size), [DrawnSegment(size, {"live": 1})]) for size in range(1, count + 1)])
    assert len(lines) == (MAX_STRIPS + 2 if count else 0)
    if count:
        assert (lines[0].split()[0], lines[-1]) == ("4", "and 3 smaller partitions")


def test_compact_explain_and_stats_draw_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    """`compact` draws before and after, `explain` the present, `stats` a directory without a broker."""
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


COLUMNS = [TableColumn("partition", is_text=True), *(TableColumn(f"count {number}") for number in range(12))]
ROWS = [["my-topic-0", *(f"{(number + 1) * 1_000_003:,}" for number in range(12))], ["t-1", *("-" for _ in range(12))]]


@pytest.mark.parametrize("width", [40, 80, 120, 500])
def test_all_columns_are_there_at_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line exceeds the terminal, continuation tables repeat the row names, and no cell is lost or cut."""
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    tables = sum("partition" in line for line in lines)
    assert tables == sum("my-topic-0" in line for line in lines)
    assert (tables == 1) == (width >= 200)
    text = " ".join(lines).split()
    assert all(text.count(cell) == 1 for cell in ROWS[0][1:])
    assert sum(line.split().count("-") for line in lines) == 12


def test_lines_for_programs_are_as_long_as_they_need_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal there is one unwrapped table."""
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(COLUMNS, ROWS)
    assert capsys.readouterr().out.count("partition") == 1


def test_a_column_that_fits_nowhere_is_printed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The terminal wraps a column that is too wide."""
    monkeypatch.setenv("COLUMNS", "10")
    print_table([TableColumn("a"), TableColumn("b")], [["x", "y" * 30]])
    assert "y" * 30 in capsys.readouterr().out


class Terminal(StringIO):
    """A file that claims to be a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def test_bytes_rate_and_time_left() -> None:
    """The line appears after one second, updates a few times a second, and is cleared at the end."""
    terminal, seconds = Terminal(), [100.0]
    with redirect_stderr(terminal), LiveProgress(clock=lambda: seconds[-1]) as progress:
        progress.show_bytes(1 << 20, 0.01)
        assert terminal.getvalue() == ""
        seconds.append(104.0)
        progress.show_bytes(8 << 20, 0.25)
        progress.show_bytes(9 << 20, 0.3)
        assert terminal.getvalue() == "\r\x1b[K25 %, 8.0 MiB, 2.0 MiB/s, 12s left"
        seconds.append(105.0)
        progress.show_bytes(10 << 20)
        assert terminal.getvalue().endswith("\r\x1b[K10.0 MiB, 2.0 MiB/s")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_the_share_of_a_known_total() -> None:
    """Bytes are counted up to the total; the line is cleared before other output, and comes again."""
    terminal, seconds = Terminal(), [100.0]
    with redirect_stderr(terminal), LiveProgress(4 << 20, clock=lambda: seconds[-1]) as progress:
        seconds.append(102.0)
        progress.advance(1 << 20)
        assert terminal.getvalue() == "\r\x1b[K25 %, 1.0 MiB, 512.0 KiB/s, 6s left"
        progress.hide()
        progress.hide()
        assert terminal.getvalue().endswith("left\r\x1b[K")
        seconds.append(104.0)
        progress.advance(1 << 20)
        assert terminal.getvalue().endswith("50 %, 2.0 MiB, 512.0 KiB/s, 4s left")


@pytest.mark.parametrize("file", [StringIO(), Terminal()])
def test_programs_see_none_of_it(file: StringIO) -> None:
    """Progress is printed only to a terminal, and not if the output goes there, too."""
    seconds = [100.0]
    with redirect_stderr(file), LiveProgress(is_shown=not file.isatty(), clock=lambda: seconds[-1]) as progress:
        seconds.append(104.0)
        progress.show_bytes(1)
    assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("segment.ms", "1h", "It is in milliseconds: 1h is 3600000"),
        ("retention.ms", " 7 d ", "It is in milliseconds: 7d is 604800000"),
        ("segment.ms", "1.5min", "It is in milliseconds: 1.5min is 90000"),
        ("segment.bytes", "64MiB", "It is in bytes: 64MiB is 67108864 (1024 bytes to the KiB)"),
        ("segment.bytes", "1g", "It is in bytes: 1g is 1073741824 (1024 bytes to the KiB)"),
        ("min.cleanable.dirty.ratio", "50%", "It is a share: 50% is 0.5"),
    ],
)
def test_a_value_with_a_unit(name: str, text: str, hint: str) -> None:
    """The hint follows Kafka's error, and its number is a valid value."""
    with pytest.raises(ConfigError) as caught:
        TOPIC_CONFIGS[name].parse(text)
    told = with_hint(caught.value)
    assert told == f"{caught.value}. {hint}"
    assert TOPIC_CONFIGS[name].parse(hint.rsplit(" is ", 1)[1].split()[0]) is not None


@pytest.mark.parametrize(
    ("name", "text"), [("segment.ms", "soon"), ("segment.ms", "1MB"), ("segment.ms", "-5"), ("cleanup.policy", "1h")]
)
def test_a_value_without_a_clear_meaning_gets_no_hint(name: str, text: str) -> None:
    """A value without a clear meaning gets no hint."""
    with pytest.raises(ConfigError) as caught:
        TOPIC_CONFIGS[name].parse(text)
    assert with_hint(caught.value) == str(caught.value)
