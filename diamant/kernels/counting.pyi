from array import array

from typing_extensions import Buffer

Numbers = array[int] | memoryview[int]

def count_records(
    data: Buffer,
    unpacked: Buffer,
    rows: Numbers,
    first: int,
    end: int,
    least_offset: int,
    k0: int,
    k1: int,
    source: int,
    entries: Numbers,
    count: int,
    sums: Numbers,
) -> tuple[int, int, int]: ...
def put_entries(
    table: Numbers,
    size: int,
    max_size: int,
    only_source: int,
    entries: Numbers,
    start: int,
    end: int,
    counts: Numbers,
    is_one_log: bool,
) -> tuple[int, int]: ...
def take_entries(table: Numbers, slot: int, entries: Numbers) -> tuple[int, int]: ...
def sum_entries(table: Numbers, counts: Numbers) -> int: ...
