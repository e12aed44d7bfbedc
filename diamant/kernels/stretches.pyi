import numpy as np
from numpy.typing import NDArray

def note_stretches(
    rows: NDArray[np.int64],
    count: int,
    position: int,
    least_offset: int,
    stretch_bytes: int,
    stretches: NDArray[np.int64],
) -> int: ...
def ranges_to_read(
    stretches: NDArray[np.int64],
    position: int,
    map_end_offset: int,
    latest: NDArray[np.int64],
    retained: NDArray[np.int64],
    ranges: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> int: ...
