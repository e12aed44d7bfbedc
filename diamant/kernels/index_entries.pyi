import numpy as np
from numpy.typing import NDArray

def index_batches(
    columns: NDArray[np.int64],
    count: int,
    output: NDArray[np.int64],
    index: NDArray[np.uint8],
    time_index: NDArray[np.uint8],
) -> int: ...
