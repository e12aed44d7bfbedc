"""The limits of the findings kept: bounded memory, and no deciding finding is lost."""

from __future__ import annotations

from diamant.cleaner.evidence.search.findings import (
    RAW,
    SAME_BYTES,
    SAME_KEY,
    VALUE,
    Finding,
    FoundList,
    ListCapacity,
    ListLimits,
    Unreadable,
)

LIMITS = ListLimits(3, 4)


def found(what: str, offset: int | None, topic: str | None = "users") -> Finding:
    return Finding(what, topic, None if topic is None else 0, "f", 0, offset, "", "00")


def offsets(one: FoundList) -> list[int | None]:
    return [finding.offset for finding in one.findings]


def test_the_lowest_that_decides_is_kept_wherever_it_is() -> None:
    """The lowest deciding finding is kept even without room."""
    one = FoundList(LIMITS.listed)
    for offset in (9, 8, 7, 6, 2, 5):
        one.add(found(VALUE, offset))
    one.settle(ListCapacity(LIMITS))
    assert (offsets(one), one.unlisted) == ([9, 8, 7, 2], {VALUE: 2})
    room = ListCapacity(LIMITS)
    room.take(VALUE, 4)
    late = FoundList(LIMITS.listed)
    for offset in (4, 3, 5):
        late.add(found(VALUE, offset))
    late.settle(room)
    assert (offsets(late), late.unlisted) == ([3], {VALUE: 2})


def test_findings_without_consequence_are_only_counted() -> None:
    """For instance, the same key in another topic is only counted."""
    one = FoundList(LIMITS.listed)
    for offset in range(5):
        one.add(found(SAME_KEY, offset, "orders"))
    room = ListCapacity(LIMITS)
    room.take(SAME_KEY, 2)
    one.settle(room)
    assert (offsets(one), one.unlisted) == ([0], {SAME_KEY: 4})


def test_of_a_file_of_nobody_each_sort_is_kept() -> None:
    """Values are kept beside records without values, and bytes of a value beside those of the key."""
    one = FoundList(LIMITS.listed)
    for what, kinds in ((SAME_KEY, (False, True)), (SAME_BYTES, ("key", "value")), (RAW, ("key", "value"))):
        for kind in kinds:
            for offset in range(10):
                one.add(found(what, None if what == RAW else offset + 100 * (kind == kinds[1]), None), kind)
    room = ListCapacity(LIMITS)
    for what in (SAME_KEY, SAME_BYTES, RAW):
        room.take(what, 100)
    one.settle(room)
    assert [(finding.what, finding.offset) for finding in one.findings] == [
        (SAME_KEY, 0),
        (SAME_KEY, 100),
        (SAME_BYTES, 0),
        (SAME_BYTES, 100),
        (RAW, None),
        (RAW, None),
    ]
    assert one.unlisted.total() == 54


def test_room_that_is_given_back_is_there_again() -> None:
    """A file that is read once more returns its room first."""
    room, one = ListCapacity(LIMITS), FoundList(LIMITS.listed)
    for offset in range(3):
        one.add(found(VALUE, offset))
    one.settle(room)
    assert room.take(VALUE, 5) == 1
    room.give_back(one.taken)
    assert room.take(VALUE, 5) == 3


def test_one_place_that_cannot_be_read_is_kept_of_each_file() -> None:
    """One unreadable place per file is kept, since it prevents claims."""
    room = ListCapacity(LIMITS)
    for kept in (3, 1, 1):
        one = FoundList(LIMITS.listed)
        for position in range(5):
            one.fail(Unreadable("users", 0, "f", position, "torn"))
        one.settle(room)
        assert [place.position for place in one.unreadable] == list(range(kept))
