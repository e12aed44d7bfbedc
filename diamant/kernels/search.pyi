from array import array

from typing_extensions import Buffer

Numbers = array[int] | memoryview[int]

def count_windows(data: Buffer, counts: Numbers, shift: int) -> None: ...
def search_rows(
    data: Buffer,
    unpacked: Buffer,
    rows: Numbers,
    count: int,
    keys: Buffer,
    bounds: Numbers,
    table: Buffer,
    shift: int,
    words: Numbers,
    offsets: Numbers,
    sizes: Numbers,
    hashes: Numbers,
    amounts: Numbers,
) -> tuple[int, int]: ...
def rarest_span(data: Buffer, counts: Numbers, shift: int) -> int: ...
def next_window(data: Buffer, place: int, end: int, table: Buffer, shift: int, words: Numbers) -> int: ...
def next_header(data: Buffer, place: int, stop: int, left: int) -> tuple[int, int, bool]: ...
def has_text(data: bytes, texts: tuple[bytes, ...], flags: bytes) -> bool: ...
