"""What the claims of a certificate come to when everything is scanned again; the same for erasures and redactions.

holds           the partition was read, and what the certificate says is gone is gone below the claim's end
broken          it is there again
cannot be told  something cannot be read, the partition is not there (another directory, a topic that was deleted since), or
nobody can tell whether what was looked for is what the certificate is about
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diamant.cleaner.evidence.scan_report import NOT_THERE, ScanReport
from diamant.storage import names
from diamant.storage.checkpoints import TopicPartition
from diamant.storage.env import Env

HOLDS = "holds"
BROKEN = "broken"
CANNOT_TELL = "cannot be told"

Judge = Callable[[Mapping[str, Any], TopicPartition, int], tuple[str, str, int]]
"""Gets a claim, its partition and its end; returns the verdict, the state, and how many records were written since."""


def check_claims(
    certificate: Mapping[str, Any], report: ScanReport, judge: Judge, notes: list[str], *, is_bound: bool
) -> list[dict[str, Any]]:
    """Return a row for each claim, and add to the notes what has to be said.

    `is_bound`: whether what was looked for is known to be what the certificate is about.
    """
    rows, missing, matching = [], 0, 0
    for claim in certificate["claims"]:
        partition, end = partition_of(claim), int(claim["below_offset"])
        verdict, state, since = CANNOT_TELL, NOT_THERE, 0
        if partition in report.partitions:
            verdict, state, since = judge(claim, partition, end)
        else:
            missing += 1
        if not is_bound:
            matching += verdict == BROKEN
            verdict = CANNOT_TELL
        rows.append({**untold(claim), "verdict": verdict, "state_now": state, "written_since": since})
    if missing:
        notes.append(missing_note(missing))
    if not is_bound:
        notes.append(
            "Without the secret nobody can tell whether what was given to look for is what the certificate is about, so no claim "
            f"is confirmed. Below the claims' ends it is in {matching} of {len(rows)} partitions."
        )
    return rows


def partition_of(claim: Mapping[str, Any]) -> TopicPartition:
    """Return the partition of a claim."""
    return str(claim["topic"]), int(claim["partition"])


def untold(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a claim that cannot be told."""
    return {
        "topic": claim["topic"],
        "partition": claim["partition"],
        "below_offset": claim["below_offset"],
        "verdict": CANNOT_TELL,
        "written_since": 0,
    }


def claims_without_partition(certificate: Mapping[str, Any], env: Env, directory: str) -> list[dict[str, Any]]:
    """Return rows for the claims about partitions of which the directory has nothing; without a scan. Blocks; OSError."""
    there = set()
    for name in env.list_dir(directory):
        try:
            there.add(names.parse_partition_dir(name))
        except ValueError:
            continue
    return [untold(claim) for claim in certificate["claims"] if partition_of(claim) not in there]


def missing_note(count: int) -> str:
    """Return what is to be said of partitions that are not there."""
    return (
        f"{count} partitions that the certificate makes claims about are not there: their topic was deleted since, or this is "
        "not the data directory that it is about. Nothing can be said of them."
    )
