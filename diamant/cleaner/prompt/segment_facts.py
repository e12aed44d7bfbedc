"""Facts about a closed segment that spare reading it again: expiry times and kinds of batches (mode prompt).

A tombstone or marker may go once its delete horizon is over, but only a round removes it. In Kafka no round comes for that
alone, so on a log without traffic it stays for ever. Here the earliest horizons of each segment are remembered, and a round is
due when one is over (`PartitionFacts.next_horizon_ms`). A marker gets its horizon in the first round that finds no batch of its
transaction any more: that is one after the round which removed the data, so such a marker makes a round due at once.

Facts are of one file: of its size, modification time and birth, since a segment that was cleaned again is another file. They are
kept in memory, some hundred bytes a segment, and for larger segments in a file beside it, which Kafka passes over because its
name begins with no number. It is made again when it is not of that segment:

    diamant-<base offset, 20 digits>.facts
        4   b"DSF1"
        4   uint32   bytes of the text that follows
        4   uint32   its CRC-32C
        n   text     JSON: the fields of SegmentFacts
        4   uint32   CRC-32C of the rest                      this and the rest only if the JSON has "keys"
        m            the filter of the segment's keys, see `key_filter`

Integers are big-endian. Lost or damaged files cost a look through the headers of the segment, and a segment less left alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from struct import Struct
from typing import Any, NamedTuple

from crc32c import crc32c

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.tombstone_hold import TombstoneHold
from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.control import ControlType, parse_control_type
from diamant.protocol.batches.header import BatchHeader
from diamant.protocol.batches.records import iter_records
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.env.env import Buffer, Env, File
from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment, scan_headers

MAX_HORIZONS = 64
"""Different horizons that are remembered of a segment, the earliest; a later round finds the others."""
MAX_STEPS = 10_000
"""Steps of transactions that are remembered of a segment; with more of them nothing is said about its markers."""
MAX_EMPTIED = 64
MIN_FILED_BYTES = 1024 * 1024
"""Facts of smaller segments are not filed: reading them again takes some milliseconds."""

PREFIX = "diamant-"
SUFFIX = ".facts"
_MAGIC = b"DSF1"
_HEAD = Struct(">4sII")

AT_ONCE_MS = 0
"""Due time of a marker that is to be given its horizon."""

# Kinds of steps.
DATA = 0
"""Batches of a transaction of the producer, in a row."""
MARKER = 1
STAMPED_MARKER = 2
"""A marker that has its horizon."""
OTHER = 3
"""A control batch that ends no transaction, or has lost its record."""


class Step(NamedTuple):
    """The events of a transaction in a segment, in order."""

    kind: int
    producer_id: int
    offset: int


class Horizon(NamedTuple):
    """A delete horizon and the first batch in the segment that has it and something to remove."""

    horizon_ms: int
    offset: int


class Emptied(NamedTuple):
    """A data batch without records, kept for its producer's sequence."""

    producer_id: int
    producer_epoch: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """The facts that only reading all records tells; the filter itself is in the file (`key_filter.load_filter`)."""

    hash_id: int
    """The key that the hashes were made with."""
    key_count: int
    has_keyless: bool
    has_unstamped: bool
    """True if there may be a tombstone that has no horizon yet."""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """See the module."""

    base_offset: int
    size: int
    modified_ms: int
    birth_ms: int | None
    first_offset: int
    """Start of the first batch; the base offset if there is none."""
    horizons: tuple[Horizon, ...] = ()
    """Ascending."""
    steps: tuple[Step, ...] | None = ()
    """None: too many."""
    emptied: tuple[Emptied, ...] | None = ()
    """None: too many."""
    has_old_format: bool = False
    """True if there are batches of magic 0 or 1, which a round would rewrite."""
    keys: KeyFacts | None = None

    @property
    def has_transactions(self) -> bool:
        """True if a round must see this segment to know what to do with markers."""
        return self.steps is None or bool(self.steps)

    def is_due(self, now_ms: int, frozen_above: int | None = None) -> bool:
        """Tell whether a horizon in the segment is over."""
        return any(
            one.horizon_ms <= now_ms and (frozen_above is None or one.offset <= frozen_above) for one in self.horizons
        )


# -- of one segment --------------------------------------------------------------------------------------------------


def read_facts(
    env: Env, directory: str, base_offset: int, size: int, *, min_filed_bytes: int = MIN_FILED_BYTES
) -> SegmentFacts:
    """Return the facts of a closed segment of `size` bytes: from their file if it is theirs, else from the segment.

    Any thread. Reads headers, and the records of batches with a horizon. Raises CorruptLog, and OSError if the segment is gone.
    """
    path = names.log_file(directory, base_offset)
    modified_ms, birth_ms = env.mtime_ms(path), env.birth_ms(path)
    filed = load_facts(env, directory, base_offset)
    if filed is not None and is_of(filed, size, modified_ms, birth_ms):
        return filed
    collector = FactsCollector()
    file = env.open(path, read_only=True)
    try:
        for position, header in scan_headers(file, 0, size):
            collector.add(header, file, position)
    finally:
        file.close()
    facts = collector.facts(base_offset, size, modified_ms, birth_ms)
    if size >= min_filed_bytes:
        file_facts(env, directory, facts)
    return facts


def is_of(facts: SegmentFacts, size: int, modified_ms: int, birth_ms: int | None) -> bool:
    """Tell whether facts from a file are those of the segment that is there now. Without a birth time: no."""
    return birth_ms is not None and (facts.size, facts.modified_ms, facts.birth_ms) == (size, modified_ms, birth_ms)


class FactsCollector:
    """Takes the batches of a segment in order, and says what is to be remembered."""

    def __init__(self, *, max_steps: int = MAX_STEPS) -> None:
        self._max_steps = max_steps
        self._first_offset: int | None = None
        self._horizons: dict[int, int] = {}
        self._steps: list[Step] | None = []
        self._emptied: list[Emptied] | None = []
        self._has_old_format = False

    def add(self, header: BatchHeader, file: File, position: int) -> None:
        """Take a batch, with the place where it is."""
        if self._first_offset is None:
            self._first_offset = header.base_offset
        if header.magic < 2:
            self._has_old_format = True
        elif header.is_control:
            self._add_control(header, file, position)
        else:
            if header.is_transactional:
                self._add_step(DATA, header)
            if not header.record_count:
                self._add_emptied(header)
            elif (
                header.has_delete_horizon
                and self.is_horizon_new(header)
                and any(record.value is None for record in _records(file, position, header))
            ):
                self.add_horizon(header.base_timestamp, header.base_offset)

    def add_old_format(self) -> None:
        """Take a batch of magic 0 or 1, with no more said about it."""
        self._has_old_format = True

    def is_horizon_new(self, header: BatchHeader) -> bool:
        """Tell whether it is worth looking into a batch for tombstones."""
        return header.base_timestamp not in self._horizons

    def add_horizon(self, horizon_ms: int, offset: int) -> None:
        """Record a batch in which something expires."""
        self._horizons.setdefault(horizon_ms, offset)
        if len(self._horizons) > MAX_HORIZONS:
            del self._horizons[max(self._horizons)]

    def facts(self, base_offset: int, size: int, modified_ms: int, birth_ms: int | None) -> SegmentFacts:
        """Return the facts of a segment whose batches were all added."""
        return SegmentFacts(
            base_offset,
            size,
            modified_ms,
            birth_ms,
            first_offset=base_offset if self._first_offset is None else self._first_offset,
            horizons=tuple(Horizon(*pair) for pair in sorted(self._horizons.items())),
            steps=None if self._steps is None else tuple(self._steps),
            emptied=None if self._emptied is None else tuple(self._emptied),
            has_old_format=self._has_old_format,
        )

    def _add_control(self, header: BatchHeader, file: File, position: int) -> None:
        if not header.record_count:
            # A round may drop it, or must keep it for an epoch: it is for a full look.
            self._add_step(OTHER, header)
            return
        if header.has_delete_horizon:
            self.add_horizon(header.base_timestamp, header.base_offset)
            self._add_step(STAMPED_MARKER, header)
            return
        key = next((record.key for record in _records(file, position, header)), None)
        try:
            is_marker = parse_control_type(key) in (ControlType.ABORT, ControlType.COMMIT)
        except CorruptBatch as error:
            raise CorruptLog(file.path, position, error.reason) from error
        self._add_step(MARKER if is_marker else OTHER, header)

    def _add_step(self, kind: int, header: BatchHeader) -> None:
        steps = self._steps
        if steps is None or (steps and kind == DATA and steps[-1][:2] == (DATA, header.producer_id)):
            return
        steps.append(Step(kind, header.producer_id, header.base_offset))
        if len(steps) > self._max_steps:
            self._steps = None

    def _add_emptied(self, header: BatchHeader) -> None:
        if self._emptied is not None:
            self._emptied.append(Emptied(header.producer_id, header.producer_epoch, header.last_offset))
            if len(self._emptied) > MAX_EMPTIED:
                self._emptied = None


def _records(file: File, position: int, header: BatchHeader) -> Iterator[Any]:
    data = file.pread(header.size, position)
    if not crc_is_valid(data, 0, header.size):
        raise CorruptLog(file.path, position, "the batch's CRC is wrong")
    try:
        yield from iter_records(data)
    except CorruptBatch as error:
        raise CorruptLog(file.path, position, error.reason) from error


# -- of a partition --------------------------------------------------------------------------------------------------


class PartitionFacts:
    """The facts of one log's closed segments. Belongs to the log's owner.

    A segment that is replaced is another object, and nothing is known of it until facts are added.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Segment, SegmentFacts]] = {}
        self._tried: frozenset[Horizon] = frozenset()

    def of(self, log: Log, end_offset: int) -> list[SegmentFacts]:
        """Return what is known of the closed segments that end at `end_offset` or before, ascending."""
        return [self._known[segment.base_offset][1] for segment in _closed(log, end_offset) if self._knows(segment)]

    def unknown(self, log: Log, end_offset: int) -> list[tuple[int, int]]:
        """Return base offset and size of the closed segments up to `end_offset` of which nothing is known."""
        segments = list(_closed(log, end_offset))
        if len(self._known) > len(log.segments):
            bases = {segment.base_offset for segment in log.segments}
            self._known = {base: known for base, known in self._known.items() if base in bases}
        return [(segment.base_offset, segment.size) for segment in segments if not self._knows(segment)]

    def add(self, log: Log, facts: SegmentFacts) -> bool:
        """Take facts that were read; return True if they are of a segment that is still there."""
        index = log.floor_segment(facts.base_offset)
        segment = log.segments[max(0, index)]
        if segment.base_offset != facts.base_offset or segment.size != facts.size:
            return False
        if log.env.mtime_ms(segment.path) != facts.modified_ms or log.env.birth_ms(segment.path) != facts.birth_ms:
            return False
        self._known[facts.base_offset] = (segment, facts)
        return True

    def next_horizon_ms(
        self, log: Log, end_offset: int, frozen_above: int | None = None, hold: TombstoneHold | None = None
    ) -> int | None:
        """Return when a round is due for the clean section, up to `end_offset`: maybe in the past; None if for nothing.

        What the last round has had the chance to remove, and did not, makes no other one due. Nothing expires above
        `frozen_above` (see `quarantine`), and above that of a `hold` it expires later.
        """
        facts = self.of(log, end_offset)
        due = (one for one in self._due(facts, frozen_above) if one not in self._tried)
        return min((_due_ms(one, hold) for one in due), default=None)

    def note_round(self, log: Log, end_offset: int, now_ms: int, hold: TombstoneHold | None = None) -> None:
        """Record that a round over the clean section begins."""
        facts = self.of(log, end_offset)
        self._tried = frozenset(one for one in self._due(facts, None) if _due_ms(one, hold) <= now_ms)

    def without_untouched(self, plan: CleanPlan) -> CleanPlan:
        """Return the plan of a round that has no dirty range, with the segments left alone in which nothing is due."""
        if plan.first_dirty_offset < plan.first_uncleanable_offset:
            raise ValueError(f"{plan.directory}: the plan has a dirty range, so its keys decide")
        untouched = [
            segment.base_offset
            for segment in plan.segments
            if (facts := self._of_plan(segment.base_offset, segment.size)) is not None
            and not facts.has_transactions
            and not facts.is_due(plan.now_ms, plan.horizons_frozen_above)
        ]
        return replace(plan, untouched=plan.untouched | frozenset(untouched))

    def _of_plan(self, base_offset: int, size: int) -> SegmentFacts | None:
        known = self._known.get(base_offset)
        return known[1] if known is not None and known[1].size == size else None

    def _knows(self, segment: Segment) -> bool:
        known = self._known.get(segment.base_offset)
        return known is not None and known[0] is segment

    def _due(self, facts: Iterable[SegmentFacts], frozen_above: int | None) -> Iterator[Horizon]:
        facts = list(facts)
        for one in facts:
            yield from (horizon for horizon in one.horizons if frozen_above is None or horizon.offset <= frozen_above)
        if frozen_above is None:
            # With a segment that cannot be read it is unknown which transactions are empty.
            yield from (Horizon(AT_ONCE_MS, offset) for offset in markers_without_data(facts))


def markers_without_data(facts: Iterable[SegmentFacts]) -> list[int]:
    """Return offsets of markers without a horizon none of whose transactions' batches is left; segments ascending.

    Says nothing from the first segment on whose steps are too many.
    """
    found = []
    with_data: set[int] = set()
    for one in facts:
        if one.steps is None:
            break
        for kind, producer_id, offset in one.steps:
            if kind == DATA:
                with_data.add(producer_id)
            elif kind == OTHER:
                continue
            elif producer_id in with_data:
                with_data.remove(producer_id)
            elif kind == MARKER:
                found.append(offset)
    return found


def _due_ms(horizon: Horizon, hold: TombstoneHold | None) -> int:
    return horizon.horizon_ms if hold is None else hold.due_ms(*horizon)


def horizon_round_end(log: Log, first_dirty_offset: int) -> int:
    """Return where a round ends that is only for horizons: the end of the clean section, at a segment's base.

    It must not lower the log's checkpoint.
    """
    index = log.floor_segment(min(first_dirty_offset, log.active.base_offset))
    return log.segments[max(0, index)].base_offset


def _closed(log: Log, end_offset: int) -> Iterator[Segment]:
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        if following.base_offset > end_offset:
            return
        yield segment


# -- their files -----------------------------------------------------------------------------------------------------


def facts_path(directory: str, base_offset: int) -> str:
    """Return the path of a segment's facts."""
    return f"{directory}/{PREFIX}{base_offset:020d}{SUFFIX}"


def file_facts(env: Env, directory: str, facts: SegmentFacts, key_filter: Buffer = b"") -> None:
    """Write a segment's facts, with its filter if they have keys. Not synced; what cannot be written is left out."""
    text = json.dumps(asdict(facts), separators=(",", ":")).encode()
    parts: list[Buffer] = [_HEAD.pack(_MAGIC, len(text), crc32c(text)), text]
    if facts.keys is not None:
        parts += [crc32c(key_filter).to_bytes(4, "big"), key_filter]
    with suppress(OSError):
        env.write_atomically(facts_path(directory, facts.base_offset), b"".join(parts), sync=False)


def load_facts(env: Env, directory: str, base_offset: int) -> SegmentFacts | None:
    """Return the facts in a segment's file; None if there are none, or they are damaged."""
    try:
        file = env.open(facts_path(directory, base_offset), read_only=True)
    except OSError:
        return None
    try:
        text = _read_text(file)
        return None if text is None else _from_json(text, base_offset)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    finally:
        file.close()


def load_filter_bytes(env: Env, directory: str, base_offset: int) -> bytes | None:
    """Return the filter in a segment's file; None if there is none, or it is damaged."""
    try:
        data = env.read_bytes(facts_path(directory, base_offset))
    except OSError:
        return None
    if len(data) < _HEAD.size:
        return None
    at = _HEAD.size + _HEAD.unpack_from(data)[1]
    body = data[at + 4 :]
    return body if data[at : at + 4] == crc32c(body).to_bytes(4, "big") else None


def prune(env: Env, directory: str, base_offsets: Collection[int]) -> None:
    """Remove the facts of segments that are no more. Blocks; what cannot be removed stays."""
    with suppress(OSError):
        for name in env.list_dir(directory):
            if name.startswith(PREFIX) and name.endswith(SUFFIX):
                number = name[len(PREFIX) : -len(SUFFIX)]
                if number.isascii() and number.isdigit() and int(number) not in base_offsets:
                    env.remove(f"{directory}/{name}", missing_ok=True)


def _read_text(file: File) -> bytes | None:
    head = file.pread(_HEAD.size, 0)
    if len(head) < _HEAD.size:
        return None
    magic, size, crc = _HEAD.unpack(head)
    if magic != _MAGIC or size > file.size():
        return None
    text = file.pread(size, _HEAD.size)
    return text if crc32c(text) == crc else None


def _from_json(text: bytes, base_offset: int) -> SegmentFacts | None:
    fields: dict[str, Any] = json.loads(text)
    fields["horizons"] = tuple(Horizon(*one) for one in fields["horizons"])
    if fields["steps"] is not None:
        fields["steps"] = tuple(Step(*one) for one in fields["steps"])
    if fields["emptied"] is not None:
        fields["emptied"] = tuple(Emptied(*one) for one in fields["emptied"])
    if fields["keys"] is not None:
        fields["keys"] = KeyFacts(**fields["keys"])
    facts = SegmentFacts(**fields)
    return facts if facts.base_offset == base_offset else None
