"""Whether the disk has room for a round on this machine that was meant for others, being too large for it."""

from __future__ import annotations

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.runners.runner_errors import NoRoom
from diamant.storage.env.env import Env

SPILL_BYTES_PER_BYTE = 0.5
"""What a local round may need on disk for each byte of the log beside its outputs: 32 bytes per record of 64."""


def check_room(env: Env, plan: CleanPlan) -> None:
    """Raise NoRoom if the disk has less room than a local round of this size may need at the most. OSError. Blocks."""
    size = sum(segment.size for segment in plan.segments)
    need = int(size * SPILL_BYTES_PER_BYTE) + plan.segment_bytes
    _, free = env.disk_usage(plan.directory)
    if free <= need:
        raise NoRoom(
            f"{plan.topic}-{plan.partition}: not cleaned on this machine, where a round over {size} bytes may need {need} bytes "
            f"of disk beside the log, and {free} are free"
        )
