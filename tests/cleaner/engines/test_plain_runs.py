"""The plain engine's fast path for plain batches: reads, kept chunks, decoded records and decompressions."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import pytest

from diamant.cleaner.engines import plain_batches, plain_round
from diamant.cleaner.engines.parsed_chunks import ParsedChunk, ParsedChunks, parse
from diamant.cleaner.engines.plain_batches import PlainBatch
from diamant.cleaner.engines.plain_round import PlainMap, PlainRewriter
from diamant.cleaner.engines.round import Engine, Round
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.rules.engine_limits import EngineLimits
from diamant.cleaner.rules.modes import MODES
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.segments.chunk_batch import ChunkBatch
from diamant.cleaner.segments.small_payloads import SmallPayloads, Unpack
from diamant.protocol.batches import compression
from diamant.storage import names
from tests.cleaner.engines.engines import Outcome, one_by_one, outcome
from tests.cleaner.facts.segment_history import DIRECTORY, SegmentHistory
from tests.memory_env import MemoryEnv

PAYLOADS = SmallPayloads()
"""One for all: its buffers are its owner's, not a chunk's."""


def parsed(data: bytes, room: int = 1 << 20) -> ParsedChunk:
    """Return the parsed chunks of a segment's bytes."""
    file = MemoryEnv().create_new("/x.log")
    file.append(data)
    return parse(file, 0, data, PAYLOADS, EngineLimits(parsed_bytes=room))


def test_nothing_is_read_twice() -> None:
    """Segments that fit are opened once, for the map. Larger and clean ones are opened again for the rewrite."""
    history = SegmentHistory()
    for segment in range(3):
        for number in range(20):
            history.batch([(b"key-%d" % (number % 7), b"%d" % segment)])
            history.batch([(b"a%d" % (number % 3), b"1"), (b"b", b"2")])
        history.roll()
    needs = parsed(bytes(history.segments[1].data)).memory_bytes
    for limits, expected in ((EngineLimits(), [1, 1, 1]), (EngineLimits(parsed_bytes=needs), [1, 1, 2])):
        env, plan = history.stored(first_dirty_offset=history.segments[1].base_offset)
        opened = [
            env.before("open", names.log_file(DIRECTORY, segment.base_offset), lambda: None, times=None)
            for segment in plan.segments
        ]
        plain_round.clean(env, plan, limits=limits)
        assert [one.hits for one in opened] == expected


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
@pytest.mark.parametrize(("count", "key_bytes"), [(1, 0), (3, 0), (700, 0), (1, 8000), (3, 8000)])
def test_a_chunk_takes_no_more_than_it_says(codec: int, count: int, key_bytes: int) -> None:
    """A chunk stays within its size even with the smallest records or extreme compression, and within the room given."""
    history = SegmentHistory()
    while history.offset < 700:
        history.batch([(b"%d" % number + bytes(key_bytes), b"") for number in range(count)], codec=codec)
    data = bytes(history.segments[0].data)
    parsed(data)  # imports
    for room in (1 << 26, 50_000):
        tracemalloc.start()
        try:
            chunk = parsed(data, room)
            found = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        # The file is counted, too.
        assert found - len(data) < chunk.memory_bytes + 20_000
        others = [entry for entry in chunk.entries if isinstance(entry, ChunkBatch)]
        plain_bytes = chunk.memory_bytes - len(data) - plain_batches.BATCH_BYTES * len(others)
        assert plain_bytes <= room
        assert bool(others) == (room == 50_000)


class OnlyRuns(ParsedChunks):
    """Fails if a batch of a run is handled on its own; `others` are the batches outside of runs."""

    def __init__(self, work: RoundWork) -> None:
        super().__init__(work)
        self.others: set[int] = set()

    def single(self, chunk: ParsedChunk, batch: PlainBatch) -> ChunkBatch:
        """Fail."""
        raise AssertionError("its records would be decoded")

    def take(self, segment: Any) -> Any:
        """Note the others."""
        for chunk in super().take(segment):
            self.others |= {entry.header.base_offset for entry in chunk.entries if isinstance(entry, ChunkBatch)}
            yield chunk


class CountingPayloads(SmallPayloads):
    """Records the codecs of decompressed payloads; fails if the general decompressor is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.unpacked: list[int] = []

    def unpacker(self, codec: int) -> Unpack:
        """Note the codec of each payload."""
        unpack = super().unpacker(codec)

        def noting(data: bytes) -> bytes:
            found = unpack(data)
            assert found is not None
            self.unpacked.append(codec)
            return found

        return noting


def cleaned(env: MemoryEnv, plan: CleanPlan, chunks_type: type[ParsedChunks] = ParsedChunks) -> tuple[Outcome, Any]:
    """Return the outcome of a round, and its chunks, with counted decompressions."""
    work = RoundWork(env, plan)
    chunks = chunks_type(work)
    chunks.payloads = CountingPayloads()
    key_map = PlainMap(work, chunks)
    parts = Round(work, key_map, partial(PlainRewriter, work, key_map, chunks))
    clean = Engine("here", lambda _: parts)
    return outcome(clean, env, plan), chunks


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fields", [{}, {"producer": 1}, {"producer": 1, "is_transactional": True}, {"codec": 4}])
def test_of_plain_batches_no_record_is_decoded(mode: str, fields: dict[str, Any]) -> None:
    """Of plain batches only a marker's record is decoded, for its type and because it stays."""
    history = SegmentHistory()
    markers = set()
    for first in range(50):
        history.batch([(b"k%d" % (number % 20), b"v") for number in range(first, first + 5)], **fields)
        if "is_transactional" in fields and first % 10 == 9:
            markers.add(history.offset)
            history.marker(1, "commit")
    env, plan = history.stored(mode=mode)
    expected = outcome(one_by_one, env, plan)
    found, chunks = cleaned(env, plan, OnlyRuns)
    assert (found, chunks.others) == (expected, markers)


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_packed_batch_is_decompressed_once_for_its_key(codec: int) -> None:
    """A packed batch is decompressed once for both passes together."""
    history = SegmentHistory()
    for number in range(20):
        history.batch([(b"key-%d" % (number % 7), b"value")], codec=codec)
    history.batch([(b"a", b"1"), (b"b", b"2")], codec=codec)
    _, chunks = cleaned(*history.stored())
    assert chunks.payloads.unpacked == 21 * [codec]
