from array import array

from typing_extensions import Buffer

Numbers = array[int] | memoryview[int]

def encode_records(
    payload: Buffer,
    rows: Numbers,
    first: int,
    end: int,
    kept_records: Numbers,
    out: Buffer,
) -> int: ...
def room_for_output(rows: Numbers, first: int, end: int) -> int: ...
def assemble(
    data: Buffer,
    rows: Numbers,
    first: int,
    end: int,
    kept_records: Numbers,
    extra: Buffer,
    out: Buffer,
    columns: Numbers,
) -> tuple[int, int]: ...
def copy_columns(rows: Numbers, first: int, end: int, columns: Numbers) -> None: ...
