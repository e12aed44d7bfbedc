"""The console of commands: styles on a terminal alone, foreign text as it is, lines wrapped between words, tables that fit."""

from __future__ import annotations

from io import BytesIO, StringIO, TextIOWrapper

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.broker.commands.terminal.console import Console, cells, escape, plain, wrap
from diamant.broker.commands.terminal.wide_table import StyledCell, TableColumn, print_table
from tests.broker.commands.test_terminal import Terminal


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of this machine's."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def printed(text: str, *, file: StringIO | None = None, width: int = 80, style: str = "", markup: bool = True) -> str:
    """What is written."""
    file = file or StringIO()
    Console(file, width=width).print(text, style=style, markup=markup)
    return file.getvalue()


def test_styles_end_where_their_tags_do() -> None:
    """Styles end where their tags do, nested ones, too; what is no tag is printed."""
    text = "[yellow][bold]NOTHING[/bold]: found[/yellow] in [] and [shop]"
    assert printed(text) == "NOTHING: found in [] and [shop]\n"
    found = printed(text, file=Terminal())
    assert found == "\x1b[0;33m\x1b[0;33;1mNOTHING\x1b[0;33m: found\x1b[0m in [] and [shop]\n"
    assert printed("late", file=Terminal(), style="bold red") == "\x1b[0;1;31mlate\x1b[0m\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colours_gets_none(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that has none, nor a person who wants none."""
    monkeypatch.setenv(name, value)
    assert printed("[red]x[/]", file=Terminal()) == "x\n"


@given(st.text(st.sampled_from("[]/bold red\\\ufdd0")))
def test_foreign_text_is_no_markup(text: str) -> None:
    """Whatever brackets, tags and backslashes it has, also between tags."""
    assert plain(escape(text)) == text
    assert plain(f"[red]{escape(text)}[/]") == text
    assert printed(text, markup=False) == f"{text}\n"


@pytest.mark.parametrize("file", [StringIO, Terminal])
def test_foreign_text_moves_no_cursor(file: type[StringIO]) -> None:
    """Control characters are not printed, so that none of their sequences is one."""
    assert printed("a\x1b[2J\r\b\x9b1mb\0\x7f\tc", file=file(), markup=False) == "a[2J1mb\tc\n"


def test_a_terminal_that_lacks_a_character_gets_its_number() -> None:
    """An error would lose the rest of the output."""
    file = TextIOWrapper(BytesIO(), encoding="ascii")
    Console(file, width=80).print("• Zürich")
    print_table([TableColumn("a", is_text=True)], [["b"]], console=Console(file, width=80))
    file.seek(0)
    assert file.read() == "\\u2022 Z\\xfcrich\n\n a\n -\n b\n\n"


@given(
    st.lists(st.sampled_from(["word", "[red]two words[/]", "[bold]x[/]", "a-long-one", "  ", "寿司"])),
    st.integers(10, 40),
)
def test_lines_are_broken_between_words(words: list[str], width: int) -> None:
    """No line is too long unless it is one word, no word is lost, and tags stay whole."""
    text = " ".join(words)
    lines = wrap(text, width)
    assert all(cells(plain(line)) <= width or " " not in plain(line).strip() for line in lines)
    assert " ".join(lines).split() == text.split()
    assert wrap("a" * 50, width) == ["a" * 50]


def test_lines_are_wrapped_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs read whole lines."""
    assert printed("one two three", width=8) == "one two three\n"
    assert printed("one two three", width=8, file=Terminal()) == "one two\nthree\n"


def test_cells_are_folded_where_the_terminal_is_narrow() -> None:
    """A cell's own lines stay, its style is that of each line, and wide characters take two columns."""
    columns = [TableColumn("topic", is_text=True), TableColumn("n"), TableColumn("state", is_text=True, least=10)]
    rows = [["寿司", "1", "ok"], ["b", "1,000\n2", StyledCell("the disk is full", "red")]]
    file = Terminal()
    print_table(columns, rows, console=Console(file, width=26), is_ruled=False)
    assert file.getvalue().replace("\x1b[0;1m", "").replace("\x1b[0;31m", "<").replace("\x1b[0m", ">").splitlines() == [
        " topic>      n>  state>",
        " 寿司       1  ok",
        " b      1,000  <the disk is>",
        "            2  <full>",
    ]
    wide = StringIO()
    print_table(columns, rows, console=Console(wide, width=80))
    assert "the disk is full" in wide.getvalue()
