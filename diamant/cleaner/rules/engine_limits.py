"""The limits of an engine: how much data its parts process at a time, and how much they hold in total."""

from __future__ import annotations

from dataclasses import dataclass, replace

from diamant.cleaner.rules.plan import MAX_SEGMENT_BYTES, CleanPlan
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.batches.record_sizes import NO_RECORD_LIMIT


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits; the defaults apply to every engine. Only tests set smaller limits."""

    batch_bytes: int = MAX_BATCH_BYTES
    """Largest decompressed batch."""
    record_bytes: int = NO_RECORD_LIMIT
    """Largest record of a compressed batch, as set in the plan."""
    output_bytes: int = MAX_SEGMENT_BYTES
    """Largest output segment, even if the plan allows more."""
    parsed_bytes: int = 16 * 1024 * 1024
    """Plain engine: memory for the parsed chunks that the first pass keeps for the second, and as much again for the current
    chunk. With 0, each batch is processed separately. The limits below apply to the compiled engine."""
    read_bytes: int = 2 * 1024 * 1024
    """Size of a chunk. It stays in the CPU's cache while kernels process it; half the size is up to a twelfth slower."""
    unpack_bytes: int = 1024 * 1024
    """Records are processed as soon as this many bytes are decompressed."""
    tuples: int = 32 * 1024
    """Number of key hashes passed on at a time (0.8 MB)."""
    notes: int = 4 * 1024 * 1024
    """Maximum number of batches with notes (at most 16 MiB of notes); later batches have none."""
    stretch_bytes: int = 128 * 1024
    """Minimum size of a run of batches with no record to keep that the second pass skips. Skipping less does not pay."""
    stretches: int = 256 * 1024
    """Maximum number of noted stretches (at most 14 MiB); the second pass reads all later stretches."""
    piece_bytes: int = 4 * 1024 * 1024
    """Minimum size of a piece of the log that one process of a divided round takes over from another."""
    table_slots: int = 64
    """Minimum number of slots in the table of a map, whatever memory the map may use."""

    def of(self, plan: CleanPlan) -> EngineLimits:
        """Return these limits with the plan's record limit."""
        return self if plan.max_record_bytes == self.record_bytes else replace(self, record_bytes=plan.max_record_bytes)


ENGINE_LIMITS = EngineLimits()
