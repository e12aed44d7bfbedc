"""Random histories of a log: for comparing engines."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Header
from tests.cleaner.facts.segment_history import NOW_MS, SegmentHistory, odd_batch

some_keys = st.sampled_from([b"", b"a", b"bb", b"key-of-sixteen-b", b"a key that is longer than two words"])
keys = st.none() | some_keys
values = st.none() | st.sampled_from([b"", b"v", b"value" * 20, bytes(300)])
pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=5)
batches = st.tuples(
    st.just("batch"),
    pairs,
    st.fixed_dictionaries(
        {},
        optional={
            "codec": st.integers(0, 4),
            "gap": st.sampled_from([1, 50, 3000]),
            "step": st.sampled_from([2, 130]),
            "padding": st.sampled_from([1, 100]),
            "headers": st.sampled_from([(Header("h", b"x"), Header("", None)), (Header("name", b"y" * 200),)]),
            "timestamp": st.sampled_from([-1, 0, NOW_MS + 10**9, NOW_MS - 2**40]),
            "log_append_time_ms": st.sampled_from([0, NOW_MS - 2]),
            "delete_horizon_ms": st.sampled_from([NOW_MS - 1, NOW_MS, NOW_MS + 1]),
            "producer": st.sampled_from([1, 2]),
        },
    ),
)
transactional = st.tuples(
    st.just("batch"),
    pairs,
    st.fixed_dictionaries(
        {"producer": st.sampled_from([11, 12]), "is_transactional": st.just(True)},
        optional={"codec": st.sampled_from([3, 4])},
    ),
)
markers = st.tuples(st.just("marker"), st.sampled_from([11, 12]), st.sampled_from(["commit", "abort"]))
emptied = st.tuples(st.just("emptied"), st.sampled_from([-1, 1, 11]))
odd = st.tuples(
    st.just("odd"),
    st.lists(st.tuples(keys.filter(lambda key: key is not None), values), min_size=1, max_size=3),
)
old = st.tuples(st.just("old"), st.integers(0, 1), st.integers(0, 3), pairs)
rolls = st.tuples(st.just("roll"), st.sampled_from([0, 0, 5]))
histories = st.lists(
    st.one_of(batches, batches, batches, transactional, transactional, markers, emptied, odd, old, rolls),
    min_size=1,
    max_size=14,
)
plain_batches = st.tuples(
    st.just("batch"),
    st.lists(st.tuples(some_keys, values), min_size=1, max_size=4),
    st.fixed_dictionaries(
        {},
        optional={
            "producer": st.sampled_from([1, 2]),
            "gap": st.sampled_from([1, 3000]),
            "step": st.sampled_from([1, 5000]),
            "codec": st.sampled_from([0, 0, 1, 2, 3, 4]),
            "headers": st.sampled_from([(), (Header("h", b"x"),), (Header("", None), Header("h" * 70, b"y" * 130))]),
            "log_append_time_ms": st.sampled_from([NOW_MS - 1000, NOW_MS - 900, NOW_MS + 10**9, 0]),
        },
    ),
)
mixed_histories = st.lists(
    st.one_of(plain_batches, plain_batches, plain_batches, histories), min_size=1, max_size=30
).map(lambda found: [step for one in found for step in (one if isinstance(one, list) else [one])])
"""Many plain batches between every kind of others."""


def play(steps: list[Any]) -> SegmentHistory:
    """Return the segments that a history writes."""
    history = SegmentHistory()
    for name, *arguments in steps:
        if name == "batch":
            history.batch(arguments[0], **arguments[1])
        elif name == "marker":
            history.marker(*arguments)
        elif name == "roll":
            history.roll(*arguments)
        elif name == "old":
            history.old(*arguments)
        elif name == "odd":
            history.append(odd_batch(arguments[0], history.offset))
        else:
            producer = arguments[0]
            producer_fields = (
                {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0} if producer >= 0 else {}
            )
            history.append(
                build_batch((), base_offset=history.offset, last_offset_delta=2, max_timestamp=5, **producer_fields)
            )
    return history
