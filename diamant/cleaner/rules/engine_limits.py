"""The limits of an engine: how much its parts take at a time, and in all."""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.rules.plan import MAX_SEGMENT_BYTES
from diamant.protocol.batches.compression import MAX_BATCH_BYTES


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Those of every engine; where they are smaller, only tests have made them so."""

    batch_bytes: int = MAX_BATCH_BYTES
    """What a batch may decompress to."""
    output_bytes: int = MAX_SEGMENT_BYTES
    """The size of an output, whatever the plan allows."""
    parsed_bytes: int = 16 * 1024 * 1024
    """Of memory, for the chunks of a log and what was parsed of them, that are kept from the first pass to the second; and for
    those of one chunk. With 0 every batch goes by itself. Plain engine; the others are of the compiled one."""
    read_bytes: int = 2 * 1024 * 1024
    """A chunk of this size stays near the processor while kernels go over it. Half of it costs up to a twelfth more: calls."""
    unpack_bytes: int = 1024 * 1024
    """Records are decompressed until there are so many bytes, then they are looked at."""
    tuples: int = 32 * 1024
    """Hashes of keys that are handed on at a time: 0.8 MB."""
    notes: int = 4 * 1024 * 1024
    """Batches beyond have no note: 16 MiB at most."""
    stretch_bytes: int = 128 * 1024
    """Runs of batches of this size are left out of the second pass if nothing of them stays; smaller ones are not worth it."""
    stretches: int = 256 * 1024
    """What is beyond is read twice: 14 MiB at most."""
    table_slots: int = 64
    """Below this a table is not worth its name: less memory than for so many slots is not accepted."""


ENGINE_LIMITS = EngineLimits()
