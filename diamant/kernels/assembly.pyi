import numpy as np
from numpy.typing import NDArray

def encode_records(
    payload: NDArray[np.uint8],
    rows: NDArray[np.int64],
    first: int,
    end: int,
    kept_records: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> int: ...
def room_for_output(rows: NDArray[np.int64], first: int, end: int) -> int: ...
def assemble(
    data: NDArray[np.uint8],
    rows: NDArray[np.int64],
    first: int,
    end: int,
    kept_records: NDArray[np.int32],
    extra: NDArray[np.uint8],
    out: NDArray[np.uint8],
    columns: NDArray[np.int64],
) -> tuple[int, int]: ...
