import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

Bytes = Buffer | NDArray[np.uint8]
Numbers = memoryview[int] | NDArray[np.int64]
Words = memoryview[int] | NDArray[np.uint64]

def sum_sizes(
    data: Bytes,
    unpacked: Bytes,
    rows: Numbers,
    first: int,
    end: int,
    least_offset: int,
    k0: int,
    k1: int,
    table: Words,
    groups: Numbers,
    count: int,
    keys: Bytes,
    used: int,
) -> tuple[int, int, int, int]: ...
