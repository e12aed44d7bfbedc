import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

def count_windows(data: Buffer, counts: NDArray[np.uint32], shift: int) -> None: ...
def search_rows(
    data: Buffer | NDArray[np.uint8],
    unpacked: Buffer | NDArray[np.uint8],
    rows: NDArray[np.int64],
    count: int,
    keys: NDArray[np.uint8],
    bounds: NDArray[np.int64],
    table: NDArray[np.uint8],
    shift: int,
    words: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    amounts: NDArray[np.int64],
) -> tuple[int, int]: ...
