"""The pending erasures that will remove a tombstone, for explaining why it still exists.

A key is looked up by its keyed digest, and only the intents of erasures of this key are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from diamant.cleaner.erasure_state.intent import CLOSING, WAITING, Intent
from diamant.cleaner.evidence.certificates.private_files import IntentFiles
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.search.needles import keyed_digest


def no_note(_key: bytes) -> None:
    """Ignore a key."""


class PendingKeys:
    """The keys of erasures in progress, while the intents contain them. Memory: 200 bytes per key, for its keyed digest."""

    def __init__(self, files: IntentFiles[Intent], on_key: Callable[[bytes], object] = no_note) -> None:
        """`on_key` is called with each key to be erased, possibly more than once."""
        self._files = files
        self._on_key = on_key
        self._digests: dict[str, bytes] = {}
        """Keyed digests of the keys, by erasure id."""

    def note(self, intent: Intent, key: SigningKey) -> None:
        """Add or update the key of an erasure whose intent is on disk."""
        self._on_key(intent.key)
        if intent.phase == CLOSING:
            self.drop(intent.id)
        else:
            self._digests[intent.id] = keyed_digest(key.secret, intent.key)

    def drop(self, intent_id: str) -> None:
        """Forget a finished erasure."""
        self._digests.pop(intent_id, None)

    def waiting_for(self, key: SigningKey, ended: Intent, digest: bytes) -> list[str]:
        """Return the ids of erasures of the key with this digest that wait for tombstones, and only in topics of `ended`.

        Skips intents that cannot be read. Does blocking I/O.
        """
        found = []
        for one in [one for one, known in list(self._digests.items()) if known == digest]:
            with suppress(OSError, ValueError):
                intent = self._files.read(one, key)
                if intent.phase == WAITING and set(intent.topics) <= set(ended.topics):
                    found.append(one)
        return found

    def of(self, key: SigningKey | None, topic: str, topic_id: str) -> PendingErasures | None:
        """Return the erasures now in progress, for queries about one topic; None if there are no erasures."""
        if not self._digests or key is None:
            return None
        ids: dict[bytes, list[str]] = {}
        for one, digest in self._digests.items():
            ids.setdefault(digest, []).append(one)
        return PendingErasures(self._files, key, ids, topic, topic_id)


class PendingErasures:
    """A snapshot of the erasures in progress, for queries about one topic. Not thread-safe.

    `ids`: the ids of the erasures, by the digest of the key. `topic_id`: the topic's id as in intents; erasures in an earlier
    topic with the same name do not count. Memory: for each erasure that was queried, the ends of its claims about the topic.
    """

    def __init__(
        self,
        files: IntentFiles[Intent],
        key: SigningKey,
        ids: Mapping[bytes, Sequence[str]],
        topic: str,
        topic_id: str,
    ) -> None:
        self._files = files
        self._key = key
        self._ids = ids
        self._topic = topic
        self._topic_id = topic_id
        self._ends: dict[str, dict[int, int]] = {}
        """The offset at which each claim ends, by erasure and partition."""

    def has(self, key: bytes) -> bool:
        """Tell whether there is an erasure of this key, in any topic."""
        return keyed_digest(self._key.secret, key) in self._ids

    def of(self, key: bytes, partition: int, offset: int) -> str | None:
        """Return the id of an erasure that covers the key's record at an offset; None if there is none. Does blocking I/O."""
        for one in self._ids.get(keyed_digest(self._key.secret, key), ()):
            if one not in self._ends:
                self._ends[one] = self._read_ends(one)
            if offset < self._ends[one].get(partition, 0):
                return one
        return None

    def _read_ends(self, intent_id: str) -> dict[int, int]:
        try:
            intent = self._files.read(intent_id, self._key)
        except (OSError, ValueError):
            return {}  # The erasure has ended since, or its intent is unreadable.
        known = intent.scope.get(self._topic)
        if known is not None and known.topic_id != self._topic_id:
            return {}
        return {index: end for (topic, index), end in intent.claims.items() if topic == self._topic}
