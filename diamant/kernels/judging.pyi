import numpy as np
from numpy.typing import NDArray

def decide(
    rows: NDArray[np.int64],
    first: int,
    end: int,
    rules: NDArray[np.int64],
    producers: NDArray[np.int64],
    latest: NDArray[np.int64],
    at: int,
    counts: NDArray[np.int64],
) -> int: ...
def room_to_judge(rows: NDArray[np.int64], first: int, end: int) -> int: ...
def judge(
    data: NDArray[np.uint8],
    unpacked: NDArray[np.uint8],
    rows: NDArray[np.int64],
    first: int,
    end: int,
    rules: NDArray[np.int64],
    table: NDArray[np.uint64],
    k0: np.uint64,
    k1: np.uint64,
    latest: NDArray[np.int64],
    kept_records: NDArray[np.int32],
    counts: NDArray[np.int64],
) -> tuple[int, int]: ...
