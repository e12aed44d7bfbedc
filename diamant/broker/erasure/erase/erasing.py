"""One attempt at an erasure, as its phases see it."""

from __future__ import annotations

from dataclasses import dataclass

from diamant.broker.operations.calls.progress import Progress
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.search.record_search import Subject


@dataclass(frozen=True, slots=True)
class Erasing:
    """The parts of an attempt that stay the same from its first phase to its last."""

    key: SigningKey
    subject: Subject
    """The key to erase. Its values are added once they are located."""
    progress: Progress
    is_patient: bool = False
    """Whether a caller waits."""
    is_new: bool = False
    """Whether this is the first attempt: the values are not known yet."""
