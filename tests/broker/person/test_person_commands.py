"""`diamant person suggest`, `check` and `show`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from diamant.broker.broker import BlockingBroker
from diamant.cleaner.person.map_file import parse_map_file
from diamant.cleaner.person.people_map import parse_people_map
from tests.broker.commands.running import run
from tests.broker.person.large_shop import SHOP_MAP, TOPICS, Customer

CLEO = Customer(2)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """The map of the shop in a file."""
    file = tmp_path / "people.yaml"
    file.write_text(yaml.safe_dump(SHOP_MAP))
    return file


def test_a_draft_is_a_map_with_reasons(shop: BlockingBroker, tmp_path: Path) -> None:
    """It is printed, or written to a new file, and never over an existing one."""
    printed = run(shop, "person", "suggest")
    assert printed.exit_code == 0
    assert (
        "#   value.email is email: 60 of 60 values look like email; its schema has the tags PII, EMAIL"
        in printed.stdout
    )
    file = tmp_path / "draft.yaml"
    written = run(shop, "person", "suggest", "--file", str(file))
    assert written.stdout.startswith(f"{file}: 12 of 12 topics, 33 places")
    assert file.read_text() == printed.stdout
    assert {rule.topic for rule in parse_map_file(file.read_bytes(), "draft.yaml").rules} == set(TOPICS)
    again = run(shop, "person", "suggest", "customers", "--file", str(file))
    assert (again.exit_code, "it exists" in again.stderr) == (2, True)
    assert file.read_text() == printed.stdout


def test_a_check_exits_by_its_findings(shop: BlockingBroker, people: Path, tmp_path: Path) -> None:
    """Each is a line; the map can be written as a dataset of Fides."""
    fides = tmp_path / "fides.yml"
    found = run(shop, "person", "check", "--map", str(people), "--fides", str(fides))
    assert found.exit_code == 3
    assert "orders: the map keeps records until P10Y (tax law), and the topic removes them after" in found.stdout
    assert parse_map_file(fides.read_bytes(), "fides.yml").identifiers == parse_people_map(SHOP_MAP).identifiers
    draft = tmp_path / "draft.yaml"
    run(shop, "person", "suggest", "--file", str(draft))
    assert run(shop, "person", "check", "--map", str(draft)).exit_code == 0


def test_a_copy_is_written_for_the_person(shop: BlockingBroker, people: Path, tmp_path: Path) -> None:
    """As JSON lines and as a page that only the owner of the files may read; without them the lines are printed."""
    file, page = tmp_path / "copy.jsonl", tmp_path / "copy.html"
    words = ("person", "show", f"customer_id={CLEO.customer_id}", "--map", str(people))
    written = run(shop, *words, "--file", str(file), "--page", str(page))
    assert written.exit_code == 0
    assert f"email = {CLEO.email}  (from customers, by customer_id)" in written.stdout
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {one["topic"] for one in lines if one["kind"] == "record"} == set(TOPICS)
    assert CLEO.email in page.read_text()
    assert (file.stat().st_mode & 0o777, page.stat().st_mode & 0o777) == (0o600, 0o600)
    printed = [json.loads(line) for line in run(shop, *words).stdout.splitlines()]
    assert [one for one in printed if one["kind"] == "record"] == [one for one in lines if one["kind"] == "record"]
    counts = json.loads(run(shop, *words, "--json").stdout)
    assert counts["records"] == sum(one["kind"] == "record" for one in lines)


def test_a_search_that_finds_nothing_or_is_refused_says_so(shop: BlockingBroker, people: Path) -> None:
    """The exit code is 3 if nothing is found, 2 for an identifier that the map does not have, and for an invalid map."""
    assert run(shop, "person", "show", "customer_id=nobody", "--map", str(people)).exit_code == 3
    unknown = run(shop, "person", "show", "iban=1", "--map", str(people))
    assert (unknown.exit_code, "the map has no identifier 'iban'" in unknown.stderr) == (2, True)
    people.write_text("version: 3")
    invalid = run(shop, "person", "show", "customer_id=1", "--map", str(people))
    assert (invalid.exit_code, "people.yaml: version: expected 1" in invalid.stderr) == (2, True)
