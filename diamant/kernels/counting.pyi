import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

Bytes = Buffer | NDArray[np.uint8]
Numbers = memoryview[int] | NDArray[np.int64]
Words = memoryview[int] | NDArray[np.uint64]

def count_records(
    data: Bytes,
    unpacked: Bytes,
    rows: Numbers,
    first: int,
    end: int,
    least_offset: int,
    k0: int,
    k1: int,
    source: int,
    entries: Words,
    count: int,
    sums: Numbers,
) -> tuple[int, int, int]: ...
def put_entries(
    table: Words,
    size: int,
    max_size: int,
    only_source: int,
    entries: Words,
    start: int,
    end: int,
    counts: Numbers,
    is_one_log: bool,
) -> tuple[int, int]: ...
def take_entries(table: Words, slot: int, entries: Words) -> tuple[int, int]: ...
def sum_entries(table: Words, counts: Numbers) -> int: ...
