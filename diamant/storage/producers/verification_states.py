"""Producers that asked to write transactional records to a partition and have not been let in yet (KIP-890).

A producer that begins a transaction in a partition is verified first (`broker/transactions/verification.py`), and
leaves an entry here before the answer is known. A batch of that transaction takes the entry away, and so does its
marker; a refusal leaves it. While it is there no batch of that producer, transactional or not, gets in above the lowest
sequence number that was asked for: of batches that are sent one behind the other, a later one must not get in before
one that has to come again.

Bound: `most` per partition; the oldest goes, and with it that protection.

Source: ProducerStateManager.maybeCreateVerificationStateEntry, VerificationStateEntry, UnifiedLog.updateProducers.
"""

from __future__ import annotations


class VerificationState:
    """One producer that waits to be let in."""

    __slots__ = ("created_ms", "lowest_sequence", "producer_epoch", "supports_epoch_bump")

    def __init__(self, base_sequence: int, producer_epoch: int, created_ms: int, *, supports_epoch_bump: bool) -> None:
        self.lowest_sequence = base_sequence
        """Of this epoch."""
        self.producer_epoch = producer_epoch
        self.created_ms = created_ms
        self.supports_epoch_bump = supports_epoch_bump
        """True if the request that made the entry was one of transactions version 2; later ones do not change it."""

    def update(self, base_sequence: int, producer_epoch: int) -> None:
        """Count another request of the producer; a newer epoch starts over, an older one is ignored."""
        if producer_epoch > self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.lowest_sequence = base_sequence
        elif producer_epoch == self.producer_epoch:
            self.lowest_sequence = min(self.lowest_sequence, base_sequence)


class VerificationStates(dict[int, VerificationState]):
    """Those of one partition, by producer id; owned by one thread."""

    __slots__ = ("_most",)

    def __init__(self, most: int = 1_000) -> None:
        super().__init__()
        self._most = most

    def start(
        self, producer_id: int, base_sequence: int, producer_epoch: int, now_ms: int, *, supports_epoch_bump: bool
    ) -> None:
        """Count a request whose answer is not known yet."""
        state = self.get(producer_id)
        if state is not None:
            state.update(base_sequence, producer_epoch)
            return
        if len(self) >= self._most:
            del self[next(iter(self))]
        self[producer_id] = VerificationState(
            base_sequence, producer_epoch, now_ms, supports_epoch_bump=supports_epoch_bump
        )

    def on_batch(self, producer_id: int) -> None:
        """Forget a producer that has written to its transaction."""
        self.pop(producer_id, None)

    def on_marker(self, producer_id: int, producer_epoch: int) -> None:
        """Forget a producer whose transaction has ended.

        Under version 2 a marker carries the epoch of the next transaction: an entry of that epoch is of that one.
        """
        state = self.get(producer_id)
        if state is not None and not (state.supports_epoch_bump and state.producer_epoch == producer_epoch):
            del self[producer_id]

    def expire(self, now_ms: int, limit_ms: int) -> None:
        """Forget producers that were not let in within `limit_ms` of their first request."""
        for producer_id in [key for key, state in self.items() if now_ms - state.created_ms >= limit_ms]:
            del self[producer_id]
