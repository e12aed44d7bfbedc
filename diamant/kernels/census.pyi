import numpy as np
from numpy.typing import NDArray

def count_headers(fd: int, end: int, max_batch_bytes: int, amounts: NDArray[np.int64]) -> tuple[int, int]: ...
