"""Keys as two 64-bit numbers, which is all of a key that a job shuffles.

Two hashes of Spark's with different seeds: for counting and comparing, where somebody who makes up two keys with equal hashes
only deceives himself. Cleaning has a keyed hash (cleaner/kernels/offset_map.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HASHES = ("key_hash_1", "key_hash_2")
COUNTED_COLUMNS = ("log_id", "offset", "timestamp_ms", "key", "value_size", "outcome", "is_control")
"""What stats and audit read of the data source."""


def with_hashes(records: DataFrame) -> DataFrame:
    """Return records with two hashes in place of the key; both NULL without a key."""
    from pyspark.sql import functions as f

    def hashed(seed: int) -> Column:
        return f.when(f.col("key").isNull(), None).otherwise(f.xxhash64(f.lit(seed), f.col("key")))

    return records.withColumns({name: hashed(seed) for seed, name in enumerate(HASHES)}).drop("key")
