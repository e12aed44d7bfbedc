"""Tables of the commands that read log files, on terminals of several widths."""

from __future__ import annotations

import pytest

from diamant.broker.commands.terminal.wide_table import TableColumn, print_table

COLUMNS = [TableColumn("partition", is_text=True), *(TableColumn(f"count {number}") for number in range(12))]
ROWS = [["my-topic-0", *(f"{(number + 1) * 1_000_003:,}" for number in range(12))], ["t-1", *("-" for _ in range(12))]]


@pytest.mark.parametrize("width", [40, 80, 120, 500])
def test_all_columns_are_there_at_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line is wider than the terminal, each further table names its rows again, and no cell is lost or cut."""
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
    """Without a terminal there is one table."""
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(COLUMNS, ROWS)
    assert capsys.readouterr().out.count("partition") == 1


def test_a_column_that_fits_nowhere_is_printed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The terminal wraps it."""
    monkeypatch.setenv("COLUMNS", "10")
    print_table([TableColumn("a"), TableColumn("b")], [["x", "y" * 30]])
    assert "y" * 30 in capsys.readouterr().out
