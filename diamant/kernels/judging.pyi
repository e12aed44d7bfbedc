from array import array

from typing_extensions import Buffer

Numbers = array[int] | memoryview[int]

def decide(
    rows: Numbers,
    first: int,
    end: int,
    rules: Numbers,
    producers: Numbers,
    latest: Numbers,
    at: int,
    counts: Numbers,
) -> int: ...
def room_to_judge(rows: Numbers, first: int, end: int) -> int: ...
def judge(
    data: Buffer,
    unpacked: Buffer,
    rows: Numbers,
    first: int,
    end: int,
    rules: Numbers,
    table: Numbers,
    k0: int,
    k1: int,
    latest: Numbers,
    kept_records: Numbers,
    counts: Numbers,
) -> tuple[int, int]: ...
