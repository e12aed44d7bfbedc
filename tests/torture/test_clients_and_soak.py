"""What real clients tell is compared with the logs, and what rises during a soak is seen."""

from __future__ import annotations

import re

import pytest

from tests.torture.batches import Record
from tests.torture.client_processes import COPY, SOURCE, check_clients
from tests.torture.history import Finding, History
from tests.torture.soak import COLUMNS, EPOCH_S, SAMPLE_S, Sample, draw, slopes


def log(*values: str) -> list[Record]:
    """Records without keys, from offset 0."""
    return [Record(offset, None, value.encode(), -1, -1, -1, False, None) for offset, value in enumerate(values)]


LOGS = {(SOURCE, 0): log("a", "b", "c"), (COPY, 0): log("a/1", "b/2")}


@pytest.mark.parametrize(
    ("read", "committed", "copies", "found"),
    [
        ({0: b"a", 1: b"b", 2: b"c"}, 3, ("a/1", "b/2"), ""),
        ({0: b"a", 2: b"c"}, 3, ("a/1",), "has committed 3 of .* and not read .1."),
        ({0: b"a", 1: b"c"}, 2, ("a/1",), "has read at .* b'c', and there is b'b'"),
        ({}, 0, ("a/1", "a/2"), "b'a' is the copy 1, .b'b'. was read"),
        ({}, 0, ("a/1", "b/2", "c/3", "c/4"), "b'c' is the copy 3, .. was read"),
    ],
    ids=["right", "missed", "another", "copied twice", "too many copies"],
)
def test_what_clients_tell_is_compared_with_the_logs(
    read: dict[int, bytes], committed: int, copies: tuple[str, ...], found: str
) -> None:
    """A group that misses a record before its offset, or reads another, and a copy that is there twice, are findings."""
    history = History(read={("g", SOURCE, 0): read}, committed={("g", SOURCE, 0): committed})
    logs = LOGS | {(COPY, 0): log(*copies)}
    if not found:
        check_clients(history, logs)
        return
    with pytest.raises(Finding, match=found):
        check_clients(history, logs)


def test_a_rise_is_told_from_noise() -> None:
    """Memory that rises by 2 MB an hour has that slope after the warm-up; what only swings within an epoch has none."""
    samples = [
        Sample(at_s, 100 + 2 * at_s / 3600 + 50 * (at_s < 600), 50, 9, at_s % EPOCH_S, 0.5, 1.0, at_s % 3)
        for at_s in (SAMPLE_S * number for number in range(720))
    ]
    found = slopes(samples, 600)
    assert found["memory, MB"].by_hour == pytest.approx(2)
    assert found["disk, MB"].by_hour == pytest.approx(0, abs=1e-9)
    assert slopes(samples[:20], 0) == {}
    assert len(re.findall("<polyline", draw(samples))) == len(COLUMNS)
