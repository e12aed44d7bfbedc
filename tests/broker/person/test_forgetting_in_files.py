"""`diamant log person forget` on the directory of a stopped broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from tests.broker.person.shop import ADA, BOB, MAP, fill


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """The directory of a stopped broker with the shop, and its map beside it."""
    (tmp_path / "people.json").write_text(json.dumps(MAP))
    async with Broker(data_dir=tmp_path / "data") as broker:
        await fill(broker)
    return tmp_path / "data"


def forget(data: Path, *words: str) -> Result:
    people = str(data.parent / "people.json")
    return CliRunner().invoke(
        main, ["log", "person", "forget", str(data), f"customer_id={ADA}", "--map", people, *words]
    )


def contents(data: Path) -> Mapping[str, bytes]:
    return {str(one.relative_to(data)): one.read_bytes() for one in data.glob("[a-z]*-0/*.log")}


def test_a_person_is_gone_from_the_files(data: Path) -> None:
    """With --now nothing of the person is left, others' records are; the paper is in the directory, too."""
    paper = data.parent / "paper.json"
    result = forget(data, "--reason", "GDPR Art. 17", "--yes", "--now", "--certificate", str(paper))
    assert result.exit_code == 0, result.output
    assert json.loads(paper.read_text())["state"] == "forgotten"
    found = contents(data)
    assert not [name for name, content in found.items() if ADA.encode() in content]
    assert sum(BOB.encode() in content for content in found.values()) == 3
    assert [*data.glob("diamant-person-*.forgotten.json")] != []


def test_a_tombstone_that_waits_is_told(data: Path) -> None:
    """Without --now the key stays until its horizon; the output names the command that continues."""
    result = forget(data, "--reason", "GDPR Art. 17", "--yes")
    assert result.exit_code == 0, result.output
    assert "values-gone" in result.output
    assert f"diamant start --data {data}" in result.output.replace("\n", "")


def test_a_preview_changes_no_record(data: Path) -> None:
    """It shows what would happen; without --yes and an answer nothing is done either."""
    before = contents(data)
    result = forget(data, "--dry-run", "--json")
    assert (result.exit_code, json.loads(result.output)["records"]) == (0, 5)
    assert forget(data, "--reason", "GDPR Art. 17").exit_code == 3
    assert {name: content for name, content in contents(data).items() if name in before} == before


async def test_the_directory_of_a_running_broker_is_refused(data: Path) -> None:
    """The error says that it is in use, and nothing is changed."""
    async with Broker(data_dir=data):
        before = contents(data)
        result = forget(data, "--reason", "GDPR Art. 17", "--yes")
        assert (result.exit_code, contents(data)) == (1, before)
    assert "in use" in result.output


def test_a_directory_of_no_broker_is_refused(tmp_path: Path) -> None:
    """A mere copy of partitions has no metadata log, which says what may be removed. Nothing is created in it."""
    (tmp_path / "people.json").write_text(json.dumps(MAP))
    (tmp_path / "data" / "orders-0").mkdir(parents=True)
    result = forget(tmp_path / "data", "--reason", "GDPR Art. 17", "--yes")
    assert (result.exit_code, "meta.properties" in result.output) == (2, True)
    assert [one.name for one in (tmp_path / "data").iterdir()] == ["orders-0"]
