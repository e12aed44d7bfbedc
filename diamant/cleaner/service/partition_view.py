"""A snapshot of what the cleaner knows about one log, for explanations. Any thread may read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from diamant.cleaner.facts.prompt_state import PromptLog
from diamant.cleaner.facts.quarantine import CorruptSegment
from diamant.cleaner.rules.modes import KAFKA, PROMPT
from diamant.cleaner.rules.tombstone_hold import TombstoneHold
from diamant.cleaner.service.partition_states import PartitionStates, Uncleanable
from diamant.cleaner.service.service_settings import ServiceSettings
from diamant.storage.log.log import Log

FREE = "none"
"""`PartitionStates.state` of a free partition."""


@dataclass(frozen=True, slots=True)
class CleanerView:
    """What the cleaner knows about one log. The defaults describe a log that the cleaner has never seen."""

    mode: str = PROMPT
    is_enabled: bool = True
    checkpoint: int | None = None
    """Start of the next round; None for the log start."""
    occupied: str = FREE
    """The log's `PartitionStates.state`."""
    uncleanable: Uncleanable | None = None
    quarantined: tuple[CorruptSegment, ...] = ()
    frozen_above: int | None = None
    """Offset above which no tombstone or marker expires, because of quarantined segments; None if there is no such limit."""
    horizon_ms: int | None = None
    """Mode prompt: time at which a round is due for records that expire in the clean section; None if unknown or never."""
    hold: TombstoneHold | None = None
    """The hold on tombstones that consumer groups have not read yet; None without a hold."""
    hash_key: bytes = bytes(16)
    """The secret key of the hashes in key filters."""

    @classmethod
    def of(
        cls,
        log: Log,
        settings: ServiceSettings,
        states: PartitionStates,
        known: PromptLog | None,
        hash_key: bytes,
        now_ms: int,
        hold: TombstoneHold | None = None,
    ) -> Self:
        """Take a snapshot for a log, without reading a file. `known`: the log's state in mode prompt; otherwise None."""
        partition = log.topic, log.partition
        checkpoint = states.checkpoint(partition)
        first_dirty = checkpoint if known is None else known.quarantine.first_dirty(checkpoint)
        quarantine = None if known is None else known.quarantine
        clean_end = log.log_start_offset if first_dirty is None else first_dirty
        return cls(
            mode=settings.mode,
            is_enabled=settings.is_enabled,
            checkpoint=first_dirty,
            occupied=states.state(partition),
            uncleanable=states.uncleanable.get(partition),
            quarantined=() if quarantine is None else tuple(quarantine.segments),
            frozen_above=None if quarantine is None else quarantine.frozen_above(now_ms),
            horizon_ms=None if known is None else known.horizon_ms(clean_end, now_ms, hold),
            hold=hold,
            hash_key=hash_key,
        )

    @property
    def is_prompt(self) -> bool:
        """True in mode prompt, in which the cleaner does more than Kafka's cleaner."""
        return self.mode != KAFKA

    @property
    def is_paused(self) -> bool:
        """True if no round may begin until the partition is resumed."""
        return self.occupied.startswith("paused") or self.occupied == "aborted"
