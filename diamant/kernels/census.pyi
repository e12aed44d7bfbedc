from array import array

Numbers = array[int] | memoryview[int]

def count_headers(fd: int, end: int, max_batch_bytes: int, amounts: Numbers) -> tuple[int, int]: ...
