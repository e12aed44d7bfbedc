import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

Bytes = Buffer | NDArray[np.uint8]
Words = NDArray[np.uint64] | memoryview[int]
Word = int | np.uint64

def hash_records(
    data: Bytes,
    unpacked: Bytes,
    rows: NDArray[np.int64],
    end_row: int,
    state: NDArray[np.int64],
    tuples: Words,
    k0: Word,
    k1: Word,
    least_offset: int,
    end_offset: int,
    may_use_vectors: bool = True,
) -> tuple[int, int]: ...
def put_tuples(table: Words, size: int, max_size: int, tuples: Words, start: int, end: int) -> tuple[int, int]: ...
def find_key(table: Words, k0: Word, k1: Word, key: Bytes) -> int: ...
def siphash128(k0: Word, k1: Word, data: Bytes) -> tuple[int, int]: ...
def move_slots(table: Words, start: int, end: int, target: Words) -> None: ...
def take_tuples(table: Words, slot: int, tuples: Words) -> tuple[int, int]: ...
def take_offsets(table: Words, words: NDArray[np.int64]) -> int: ...
def scatter(
    tuples: Words, start: int, end: int, shift: int, buffers: Words, fill: NDArray[np.int64] | memoryview[int]
) -> int: ...
def take_missing(table: Words, tuples: Words, count: int, offsets: NDArray[np.int64]) -> int: ...
