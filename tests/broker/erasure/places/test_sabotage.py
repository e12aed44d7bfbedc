"""Sabotaged scans and cleaners: the erasure itself notices."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.erase import erase_tombstones, erase_values
from diamant.cleaner.engines import plain_round
from diamant.cleaner.erasure_state import locate
from diamant.cleaner.evidence.scan import files_to_read
from diamant.cleaner.evidence.search import known_positives
from diamant.cleaner.evidence.search.record_search import FileSearch
from diamant.cleaner.rules import record_fate
from diamant.cleaner.rules.engine_limits import EngineLimits
from diamant.kernels.constants.fates import KEEP
from diamant.storage.env.env import RealEnv
from tests.broker.erasure.brokers import broker_at, data_of
from tests.broker.erasure.constants import KEY, PERSON
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import check_claims, key_of, signed, verify
from tests.broker.erasure.records import create, create_with_key, values_left, write
from tests.mutants import Mutant, put_in, returns
from tests.waiting import wait_until

KEEPS_DELETED = Mutant(Evidence, "remove_doomed", returns({}))
WRITES_NOTHING = Mutant(erase_tombstones, "write_tombstone", returns(0))


def has_values(broker: Broker) -> bool:
    """Return the independent scanner's result."""
    return any(value is not None for value in values_left(broker))


def not_read(certificate: dict[str, Any]) -> list[str]:
    """Return the files that the scan did not account for; its known positives may be missing with them."""
    files = [one["file"] for one in certificate["coverage"]["not_read"]]
    return [file.rpartition("/")[2] for file in files if not file.startswith(known_positives.TOPIC)]


# -- the scan ------------------------------------------------------------------------------------------------------------


async def test_a_scan_that_skips_deleted_files_certifies_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another listing has the file, and no scan has read it."""
    await create_with_key(broker)

    def without_deleted(real: Any) -> Any:
        return lambda *arguments: (one for one in real(*arguments) if not one.name.endswith(".deleted"))

    put_in(monkeypatch, KEEPS_DELETED, Mutant(files_to_read, "list_places", without_deleted))
    erasure = await erase(broker)
    assert has_values(broker), "the sabotage must show"
    assert (erasure.state, erasure.certificate["claims"]) == ("not-certified", [])
    assert any(name.endswith(".log.deleted") for name in not_read(erasure.certificate))
    assert erasure.certificate["not_certified"][0]["state"] == "inconclusive"
    check_claims(data_of(broker), erasure.certificate, KEY)


async def test_a_scan_that_trusts_a_stale_filter_certifies_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment skipped by its filter was not read, whatever the filter says."""
    await create_with_key(broker, others=30)

    def is_stale(_env: object, path: str, base_offset: int | None, *_: object) -> bool:
        return "/users-" in path and base_offset == 0

    (data_of(broker) / "diamant-hash-key").write_bytes(b"k" * 16)

    def wanted(real: Any) -> Any:
        return lambda self, place: not is_stale(None, place.path, place.base_offset) and real(self, place)

    put_in(monkeypatch, Mutant(locate, "cannot_hold", lambda _: is_stale), Mutant(files_to_read.Scope, "holds", wanted))
    erasure = await erase(broker)
    assert has_values(broker), "the sabotage must show"
    assert (erasure.state, not_read(erasure.certificate)) == ("not-certified", ["00000000000000000000.log"])


@pytest.mark.parametrize("is_redaction", [False, True])
async def test_a_scan_that_does_not_see_certifies_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, is_redaction: bool
) -> None:
    """A scan that counts its reads correctly but finds nothing, not even the known positives, is reported."""
    await create_with_key(broker, others=30)
    put_in(monkeypatch, Mutant(FileSearch, "_look_at_record", returns(frozenset())))
    if is_redaction:
        done = await broker.redact("users", where=f"value == '{PERSON.decode()}'", reason="GDPR Art. 17")
    else:
        put_in(monkeypatch, WRITES_NOTHING)
        done = await erase(broker)
    assert (done.state, done.certificate["claims"]) == ("not-certified", [])
    known = done.certificate["coverage"]["known_positives"]
    assert known["seen"] < known["planted"]
    assert "may be blind" in done.certificate["not_certified"][0]["problems"][0]["reason"]
    assert not [path for path in data_of(broker).iterdir() if path.name.startswith(known_positives.TOPIC)]


async def test_the_next_start_removes_leftovers_of_a_killed_scan(tmp_path: Path) -> None:
    """The next start removes them like any directory that awaits deletion."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        directory = data_of(broker)
    made = known_positives.make_known_positives(b"s" * 32)
    made.write(RealEnv(), str(directory))
    left = [path for path in directory.iterdir() if path.name.startswith(known_positives.TOPIC)]
    assert len(left) == 2
    async with broker_at(tmp_path) as broker:
        await wait_until(lambda: not any(path.exists() for path in left))
        assert (await erase(broker)).state == "values-gone"


# -- its account, in a signed certificate -----------------------------------------------------------------------------------


def declare_another_record(certificate: dict[str, Any]) -> None:
    row = next(one for one in certificate["coverage"]["ledger"] if one.get("declared"))
    next(iter(row["declared"].values()))[1] += 1


SPOILS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a file is missing": lambda one: one["coverage"]["ledger"].pop(),
    "more is declared than was read": declare_another_record,
    "half a file was read": lambda one: one["coverage"]["ledger"][0].update(bytes=10_000),
    "a claim for nothing": lambda one: one["claims"].append({**one["claims"][0], "partition": 7}),
    "no claims": lambda one: one["claims"].clear(),
    "wrong totals": lambda one: one["coverage"].update(records=1_000),
    "no account": lambda one: one["coverage"].pop("ledger"),
}


async def test_a_signed_certificate_whose_account_does_not_add_up_is_not_valid(broker: Broker) -> None:
    """Whoever signed it: the scanned amounts must equal the existing ones."""
    await create_with_key(broker, codec=3)
    certificate = (await erase(broker)).certificate
    sound = await verify(broker, certificate, None)
    assert (sound.is_valid, sound.coverage_adds_up) == (True, True), sound.notes
    for what, spoil in SPOILS.items():
        fields = copy.deepcopy(certificate)
        spoil(fields)
        found = await verify(broker, signed(fields, key_of(broker)), None)
        assert (found.signature, found.coverage_adds_up, found.is_valid) == ("trusted", False, False), what


# -- the cleaner -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds in a thread call `record_fate` for each record."""
    put_in(
        monkeypatch,
        Mutant(plain_round, "clean", lambda real: partial(real, limits=EngineLimits(parsed_bytes=0))),
    )


@pytest.mark.usefixtures("is_plain")
async def test_a_cleaner_that_keeps_one_record_of_thirty_is_caught_by_the_scan(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One remaining value of the key is enough."""
    await create(broker)
    for version in range(30):
        write(broker, (KEY, b"%d " % version + PERSON), codec=version % 5)
    kept: list[Any] = []

    def with_one_kept(real: Any) -> Any:
        def fate(**facts: Any) -> Any:
            found = real(**facts)
            if found != KEEP and facts["has_value"] and not kept:
                kept.append(facts)
                return KEEP
            return found

        return fate

    put_in(monkeypatch, Mutant(record_fate, "record_fate", with_one_kept), Mutant(erase_values, "ROUNDS", lambda _: 1))
    erasure = await erase(broker)
    assert len(kept) == 1, "the sabotage must show"
    values = [value for value in values_left(broker) if value is not None]
    assert (len(values), erasure.state) == (1, "not-certified")


async def test_a_cleaner_that_loses_the_tombstone_is_seen(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and tombstone are gone too early: the certificate states key-gone without a round at the horizon."""
    await create_with_key(broker, others=30)

    def without_tombstones(real: Any) -> Any:
        return lambda **facts: real(**{**facts, "is_expired": facts["is_expired"] or not facts["has_value"]})

    put_in(monkeypatch, Mutant(record_fate, "record_fate", without_tombstones))
    erasure = await erase(broker)
    assert not has_values(broker)
    assert values_left(broker) == []
    assert (erasure.state, erasure.next_due_ms) == ("key-gone", None)
    # The step that wrote it, and no step that removed it, stand side by side.
    assert "tombstone_offset" in erasure.certificate["done"][0]
    assert erasure.certificate["lost_tombstones"] == [{"topic": "users", "partition": 0}]


def test_the_fields_of_a_row_of_the_account_make_it_again() -> None:
    """A file's fields in the certificate equal the scan's record."""
    from diamant.cleaner.evidence.scan.coverage import FileRow

    row = FileRow("users-3/1.log", "users", 3, "", 90, 10, {"lz4": [1, 2, 90]}, {"lz4": [1, 2, 90]}, problems=1)
    assert dataclasses.replace(FileRow.from_fields(row.to_fields())) == row
    assert row.adds_up
