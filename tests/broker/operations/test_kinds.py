"""Kinds of records have the same names wherever they are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.commands.terminal.strip_text import STYLES
from diamant.broker.operations.figures.strip_values import EXPIRED, KINDS, UNKNOWN
from diamant.cleaner.rules.record_kinds import BELOW_LOG_START, NAMES, RARE, SHOWN, Kinds, counted, used
from diamant.cleaner.rules.result import REASONS
from diamant.cleaner.spark.analyses import stats_rows as spark_stats


def test_names_are_the_same_everywhere(tmp_path: Path) -> None:
    """The names are the same in a broker's answers, in JSON of `log stats`, in Spark's columns, in pictures, and as reasons of
    removal.
    """
    with Broker(data_dir=str(tmp_path), diamant_http_listen="127.0.0.1:0") as broker:
        broker.create_topic("t", compact=True, delete_retention_ms=0)
        broker.produce("t", "v", key="k")
        at = ("t", "--json", "--bootstrap-server", broker.bootstrap_servers)
        count, segments, compacted = (ask(*words, *at) for words in (("count",), ("count", "--segments"), ("compact",)))
    assert {*SHOWN} <= {*count} & {*count["partitions"][0]}
    assert segments["partitions"][0]["segments"][0]["counts"].keys() == {*NAMES}
    assert {*compacted["partitions"][0]["kept"]} | {*REASONS} < {*NAMES}
    [topic] = [one for one in ask("log", "stats", str(tmp_path), "--json")["topics"] if one["topic"] == "t"]
    assert {*NAMES} <= {*topic["partitions"][0]} & {*spark_stats.SCHEMA.replace(",", "").split()}
    assert {*KINDS} == {*SHOWN[1:], EXPIRED, UNKNOWN}
    assert {*STYLES} == {*KINDS} - {EXPIRED}


def ask(*words: str) -> dict[str, Any]:
    """Run a command that prints JSON."""
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 0, found.output
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def test_numbers_add_up_by_kind() -> None:
    """Sums keep the kinds apart; rare kinds are shown if there is one in any row; one of a plural is in the singular."""
    one, other = Kinds(3, live=2, superseded=1), Kinds(1, keyless=1, markers=2)
    assert one + other == Kinds(4, live=2, superseded=1, keyless=1, markers=2)
    assert used(NAMES, [one, other]) == ["records", "live", "superseded", "tombstones", "keyless", "markers"]
    assert used(NAMES, []) == [name for name in NAMES if name not in RARE]
    assert [counted(number, "markers") for number in (1, 2000)] == ["1 marker", "2,000 markers"]
    assert [counted(1, name) for name in ("keyless", BELOW_LOG_START)] == ["1 keyless", "1 below log start"]
