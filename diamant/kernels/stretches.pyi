from array import array

Numbers = array[int] | memoryview[int]

def note_stretches(
    rows: Numbers,
    count: int,
    position: int,
    least_offset: int,
    stretch_bytes: int,
    stretches: Numbers,
) -> int: ...
def ranges_to_read(
    stretches: Numbers,
    position: int,
    map_end_offset: int,
    latest: Numbers,
    retained: Numbers,
    ranges: Numbers,
    counts: Numbers,
) -> int: ...
def take_notes(rows: Numbers, count: int, least_offset: int, notes: Numbers) -> int: ...
def give_notes(rows: Numbers, first: int, end: int, least_offset: int, notes: Numbers) -> int: ...
