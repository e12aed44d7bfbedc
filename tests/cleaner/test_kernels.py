"""Compiled kernels against their plain twins."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.broker.compiled_walk import CompiledWalk
from diamant.protocol import validation
from diamant.protocol.batch import HEADER_SIZE
from diamant.protocol.records import Header, Record, build_batch
from diamant.storage.log import Validation

kernels = pytest.importorskip("diamant.cleaner.kernels")


@pytest.fixture(autouse=True)
def _no_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALL_BATCH_RECORDS", 0)


CHECKS = validation.RecordChecks(True, 0, 0, 0, False)

record = st.builds(
    Record,
    offset=st.just(0),
    timestamp=st.integers(-(2**50), 2**50),
    key=st.none() | st.binary(max_size=200),
    value=st.none() | st.binary(max_size=200),
    headers=st.lists(st.builds(Header, st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
)


def payload_of(records: list[Record]) -> bytes:
    numbered = [item._replace(offset=index) for index, item in enumerate(records)]
    return bytes(build_batch(numbered)[HEADER_SIZE:])


@settings(max_examples=150, deadline=None)
@given(st.lists(record, min_size=1, max_size=8), st.integers(0, 9))
def test_walk_of_valid_records_equals_the_plain_walk(records: list[Record], extra: int) -> None:
    """Whatever valid records are in a batch, both walks find the same; also when the count is wrong."""
    payload = payload_of(records)
    base = records[0].timestamp
    for count in (len(records), len(records) - 1, len(records) + extra):
        assert kernels.walk_records(payload, count, base, CHECKS) == validation.walk_records(
            payload, count, base, CHECKS
        )


@settings(max_examples=300, deadline=None)
@given(st.lists(record, min_size=1, max_size=3), st.data())
def test_walk_of_damaged_records_equals_the_plain_walk(records: list[Record], data: st.DataObject) -> None:
    """Strategy: overwrite or cut bytes. Invariant: same fault or same result as the plain walk, never a read beyond the end."""
    payload = bytearray(payload_of(records))
    for _ in range(data.draw(st.integers(1, 3))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(
                st.sampled_from([0, 1, 2, 127, 128, 254, 255])
            )
    damaged = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    plain = validation.walk_records(damaged, len(records), 0, CHECKS)
    compiled = kernels.walk_records(damaged, len(records), 0, CHECKS)
    assert (compiled.fault == validation.NO_FAULT) == (plain.fault == validation.NO_FAULT)
    if plain.fault == validation.NO_FAULT:
        assert compiled == plain


def test_walk_of_a_hostile_record_count_ends_with_the_bytes() -> None:
    """A count of two billion over a few bytes ends where the bytes end."""
    assert kernels.walk_records(b"\x00" * 3, 2**31 - 1, 0, CHECKS).fault != validation.NO_FAULT


def test_the_compiled_walk_replaces_the_plain_one_after_enough_records() -> None:
    """The plain walk serves until the limit; then the compiled one is loaded in a thread and takes over."""
    settings_of_logs = Validation()
    compiled = CompiledWalk(settings_of_logs, load_after_records=10)
    payload = payload_of([Record(0, 5, b"k", b"v")] * 8)
    first = settings_of_logs.walk(payload, 8, 5, CHECKS)
    assert not compiled.wait_loaded(60)
    settings_of_logs.walk(payload, 8, 5, CHECKS)
    assert compiled.wait_loaded(60)
    assert settings_of_logs.walk(payload, 8, 5, CHECKS) == first
