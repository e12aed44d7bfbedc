"""docs/how-to/spark.md has every column and option of the data source, in the words of the code."""

from __future__ import annotations

from pathlib import Path

from diamant.cleaner.spark.source.options import HELP
from diamant.cleaner.spark.source.source_columns import COLUMNS, CORRUPT, DECODED

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "how-to" / "spark.md").read_text()


def test_every_column_is_documented() -> None:
    """Every column is documented with its type."""
    rows = [f"| `{column.name}` | {column.type} | {column.help} |" for column in (*COLUMNS, *DECODED, CORRUPT)]
    assert [row for row in rows if row not in PAGE] == []


def test_every_option_is_documented() -> None:
    """Every option is documented with the help text in the code."""
    assert [name for name, text in HELP.items() if f"| `{name}` | {text} |" not in PAGE] == []
