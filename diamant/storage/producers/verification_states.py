"""Producers whose transactional writes to a partition await verification (KIP-890).

A producer that begins a transaction in a partition is verified first (`broker/transactions/verification.py`). An entry is added
here before the verification ends. A batch of the transaction removes the entry, and so does its marker; a refusal keeps it.
While the entry exists, no batch of that producer, transactional or not, is accepted above the lowest requested sequence number.
A pipelined later batch thus cannot overtake a refused one that must be resent.

A partition has at most `most` entries; when another is added, the oldest one is dropped, and its producer loses the protection.

Source: ProducerStateManager.maybeCreateVerificationStateEntry, VerificationStateEntry, UnifiedLog.updateProducers.
"""

from __future__ import annotations


class VerificationState:
    """One producer that awaits verification."""

    __slots__ = ("created_ms", "lowest_sequence", "producer_epoch", "supports_epoch_bump")

    def __init__(self, base_sequence: int, producer_epoch: int, created_ms: int, *, supports_epoch_bump: bool) -> None:
        self.lowest_sequence = base_sequence
        """Lowest requested sequence of this epoch."""
        self.producer_epoch = producer_epoch
        self.created_ms = created_ms
        self.supports_epoch_bump = supports_epoch_bump
        """True if the first request used transactions version 2; later requests do not change it."""

    def update(self, base_sequence: int, producer_epoch: int) -> None:
        """Add another request of the producer; a newer epoch resets the entry, an older one is ignored."""
        if producer_epoch > self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.lowest_sequence = base_sequence
        elif producer_epoch == self.producer_epoch:
            self.lowest_sequence = min(self.lowest_sequence, base_sequence)


class VerificationStates(dict[int, VerificationState]):
    """The entries of one partition, by producer id; owned by one thread."""

    __slots__ = ("_most",)

    def __init__(self, most: int = 1_000) -> None:
        super().__init__()
        self._most = most

    def start(
        self, producer_id: int, base_sequence: int, producer_epoch: int, now_ms: int, *, supports_epoch_bump: bool
    ) -> None:
        """Record a request that awaits verification."""
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

        In version 2, a marker carries the next transaction's epoch; an entry of that epoch belongs to the next one and stays.
        """
        state = self.get(producer_id)
        if state is not None and not (state.supports_epoch_bump and state.producer_epoch == producer_epoch):
            del self[producer_id]

    def expire(self, now_ms: int, limit_ms: int) -> None:
        """Forget producers that were not verified within `limit_ms` of their first request."""
        for producer_id in [key for key, state in self.items() if now_ms - state.created_ms >= limit_ms]:
            del self[producer_id]
