"""The cleaner's knowledge of one log at one moment, as values: for explanations, in any thread."""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.prompt.quarantine import CorruptSegment
from diamant.cleaner.rules.modes import KAFKA, PROMPT
from diamant.cleaner.service.partition_states import Uncleanable

FREE = "none"
"""`CleaningStates.state` of a partition that nothing occupies."""


@dataclass(frozen=True, slots=True)
class CleanerView:
    """The defaults are those of a log that the cleaner has never seen."""

    mode: str = PROMPT
    is_enabled: bool = True
    checkpoint: int | None = None
    """Start of the next round; None: at the log start."""
    occupied: str = FREE
    """`CleaningStates.state`."""
    uncleanable: Uncleanable | None = None
    quarantined: tuple[CorruptSegment, ...] = ()
    frozen_above: int | None = None
    """Above this offset no tombstone and no marker expires; None: nothing is frozen."""
    horizon_ms: int | None = None
    """Mode prompt: when a round is due for what expires in the clean section, as far as is known."""
    hash_key: bytes = bytes(16)
    """Of the filters of keys."""

    @property
    def is_prompt(self) -> bool:
        """True if the cleaner does more than Kafka's."""
        return self.mode != KAFKA

    @property
    def is_paused(self) -> bool:
        """True if rounds are kept away until further notice."""
        return self.occupied.startswith("paused") or self.occupied == "aborted"
