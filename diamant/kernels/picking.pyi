import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

Bytes = Buffer | NDArray[np.uint8]
Numbers = memoryview[int] | NDArray[np.int64]
Words = memoryview[int] | NDArray[np.uint64]

def pick_records(
    data: Bytes,
    unpacked: Bytes,
    rows: Numbers,
    first: int,
    end: int,
    least_offset: int,
    wanted: Bytes,
    mode: int,
    k0: int,
    k1: int,
    watched: Words,
    size: int,
    picked: Numbers,
) -> tuple[int, int, int, int]: ...
