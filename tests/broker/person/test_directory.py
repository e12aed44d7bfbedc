"""`diamant log person` on the files of a shop: the same answers as those of its broker, without one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from diamant import Admin
from diamant.broker.broker import BlockingBroker
from diamant.broker.cli import main
from tests.broker.person.large_shop import SHOP_MAP, Customer

CLEO = Customer(2)


@pytest.fixture(scope="module")
def files(shop: BlockingBroker, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A copy of the shop's directory, and a file with its map."""
    here = tmp_path_factory.mktemp("copy")
    shutil.copytree(shop.awaited.node.config.data_dir, here / "data")
    (here / "people.json").write_text(json.dumps(SHOP_MAP))
    return here / "data", here / "people.json"


def run(command: str, files: tuple[Path, Path], *words: str) -> Result:
    data, people = files
    return CliRunner().invoke(main, ["log", "person", command, str(data), *words, "--map", str(people)])


def lines_of(result: Result) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def without_times(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out what depends on the time of the question, and on what a running cleaner knows."""
    return {name: value for name, value in line.items() if name not in ("why", "until_ms", "until_is")}


def test_a_person_is_shown_from_files(shop: BlockingBroker, files: tuple[Path, Path]) -> None:
    """The lines are those of the broker: identifiers and what led to them, records, counts of topics."""
    shown = run("show", files, f"customer_id={CLEO.customer_id}")
    assert shown.exit_code == 0, shown.output
    admin = Admin(shop.bootstrap_servers)
    of_broker = [
        one for one in admin.person.show({"customer_id": CLEO.customer_id}, SHOP_MAP) if one["kind"] != "progress"
    ]

    def found(lines: list[Mapping[str, Any]]) -> list[str]:
        return sorted(json.dumps(without_times(one), sort_keys=True) for one in lines)

    assert found(lines_of(shown)) == found(of_broker)


def test_a_map_is_checked_against_files(shop: BlockingBroker, files: tuple[Path, Path]) -> None:
    """The problems are those that the broker finds; a place that no record has is one."""
    checked = json.loads(run("check", files, "--json").stdout)
    assert checked == Admin(shop.bootstrap_servers).person.check(SHOP_MAP)
    wrong = json.loads(files[1].read_text())
    wrong["topics"]["customers"]["learns"]["email"] = "value.mail"
    other = files[1].parent / "wrong.json"
    other.write_text(json.dumps(wrong))
    checked = run("check", (files[0], other), "--json")
    assert checked.exit_code == 3
    assert ("customers", "value.mail") in {
        (one["topic"], one["place"]) for one in json.loads(checked.stdout)["problems"]
    }


def test_a_map_is_suggested_from_files(files: tuple[Path, Path]) -> None:
    """The draft has the places of the customers' identifiers."""
    result = CliRunner().invoke(main, ["log", "person", "suggest", str(files[0]), "--json"])
    places = {(one["topic"], one["place"]) for one in json.loads(result.stdout)["places"]}
    assert {("customers", "key"), ("customers", "value.email")} <= places


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["nobody=1"], "no identifier 'nobody'"), (["customer_id=none"], ""), (["loyalty"], "expected NAME=VALUE")],
)
def test_a_question_without_an_answer(files: tuple[Path, Path], words: list[str], expected: str) -> None:
    """An unknown identifier and a wrong form are refused; a person without records gives code 3."""
    result = run("show", files, *words)
    assert (result.exit_code, expected in result.output) == (3 if "none" in words[0] else 2, True)
