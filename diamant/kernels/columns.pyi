import numpy as np
from numpy.typing import NDArray

def walk_records(
    data: NDArray[np.uint8],
    unpacked: NDArray[np.uint8],
    rows: NDArray[np.int64],
    first_row: int,
    end_row: int,
    step: int,
    bounds: NDArray[np.int64],
    only: NDArray[np.int64],
    has_only: bool,
    want: int,
    state: NDArray[np.int64],
    fixed: NDArray[np.int64],
    keys: NDArray[np.uint8],
    key_ends: NDArray[np.int32],
    has_key: NDArray[np.bool_],
    values: NDArray[np.uint8],
    value_ends: NDArray[np.int32],
    has_value: NDArray[np.bool_],
    header_ends: NDArray[np.int32],
    header_keys: NDArray[np.uint8],
    header_key_ends: NDArray[np.int32],
    header_values: NDArray[np.uint8],
    header_value_ends: NDArray[np.int32],
    has_header_value: NDArray[np.bool_],
) -> tuple[int, int]: ...
