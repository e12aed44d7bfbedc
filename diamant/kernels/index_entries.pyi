from array import array

from typing_extensions import Buffer

Numbers = array[int] | memoryview[int]

def index_batches(
    columns: Numbers,
    count: int,
    output: Numbers,
    index: Buffer,
    time_index: Buffer,
) -> int: ...
