from array import array

from typing_extensions import Buffer

Numbers = array[int] | memoryview[int]

def pick_records(
    data: Buffer,
    unpacked: Buffer,
    rows: Numbers,
    first: int,
    end: int,
    least_offset: int,
    wanted: Buffer,
    mode: int,
    k0: int,
    k1: int,
    watched: Numbers,
    size: int,
    picked: Numbers,
) -> tuple[int, int, int, int]: ...
