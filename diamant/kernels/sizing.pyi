from array import array

from typing_extensions import Buffer

Numbers = array[int] | memoryview[int]

def sum_sizes(
    data: Buffer,
    unpacked: Buffer,
    rows: Numbers,
    first: int,
    end: int,
    least_offset: int,
    k0: int,
    k1: int,
    table: Numbers,
    groups: Numbers,
    count: int,
    keys: Buffer,
    used: int,
) -> tuple[int, int, int, int]: ...
