"""The memory of ghosts: bounded, and emptied key by key."""

from __future__ import annotations

from uuid import UUID

from diamant.broker.ghosts.ledger import MAX_GHOSTS, MAX_KEY_BYTES, Ghost, GhostLedger

TOPIC = UUID(int=1)


def ghost(key: bytes) -> Ghost:
    """One of a key."""
    return Ghost(key, 7, 0, {"slow": 3})


def test_a_full_ledger_counts() -> None:
    """Further keys, and long ones, are only counted; a key that goes makes room."""
    ledger = GhostLedger()
    for index in range(MAX_GHOSTS):
        ledger.add(TOPIC, 0, ghost(b"%d" % index))
    ledger.add(TOPIC, 1, ghost(b"one more"))
    ledger.add(TOPIC, 0, ghost(b"0"))
    assert (len(ledger.of(TOPIC)[0]), 1 in ledger.of(TOPIC), ledger.left_out) == (MAX_GHOSTS, False, {TOPIC: 1})
    ledger.forget_key(b"0")
    ledger.add(TOPIC, 1, ghost(b"x" * (MAX_KEY_BYTES + 1)))
    ledger.add(TOPIC, 1, ghost(b"one more"))
    assert (list(ledger.of(TOPIC)[1]), ledger.left_out) == ([b"one more"], {TOPIC: 2})


def test_topics_are_told_apart_by_their_ids() -> None:
    """One that was deleted and made again has no ghosts."""
    ledger = GhostLedger()
    ledger.add(TOPIC, 0, ghost(b"k"))
    assert ledger.of(UUID(int=2)) == {}
