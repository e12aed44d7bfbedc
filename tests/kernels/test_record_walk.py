"""The compiled walk over produced records equals the plain one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.kernels.constants.walk import NO_FAULT
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.validation import compiled_walk, walk_records
from tests.effort import examples
from tests.kernels.samples import damaged, payload_of, record


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(record, min_size=1, max_size=8), st.integers(0, 9), st.data())
def test_the_walk_equals_the_plain_walk(records: list[Record], extra: int, data: st.DataObject) -> None:
    """Strategy: overwrite or cut bytes, or leave them, and give a wrong count. Invariant: same fault, or same result as the
    plain walk, never a read beyond the end.
    """
    payload = damaged(data, payload_of(records), least=0)
    payload = payload[: data.draw(st.just(len(payload)) | st.integers(0, len(payload)))]
    base = data.draw(st.sampled_from([0, records[0].timestamp]))
    for count in (len(records), len(records) - 1, len(records) + extra):
        plain = walk_records(bytes(payload), count, base)
        compiled = compiled_walk(bytes(payload), count, base)
        assert (compiled.fault == NO_FAULT) == (plain.fault == NO_FAULT)
        if plain.fault == NO_FAULT:
            assert compiled == plain


def test_walk_of_a_hostile_record_count_ends_with_the_bytes() -> None:
    """A count of two billion over a few bytes ends the walk at the end of the bytes."""
    assert compiled_walk(b"\x00" * 3, 2**31 - 1, 0).fault != NO_FAULT
