"""What the claims of a certificate come to when everything is scanned again; the same for erasures and redactions.

holds           the partition was read, and what the certificate says is gone is gone below the claim's end
broken          it is there again
cannot be told  something cannot be read, the partition is not there (another directory, a topic that was deleted since) or is
of another topic that has its name now, or nobody can tell whether what was looked for is what the certificate is about

Topics are known by their ids. Certificates of versions before have none: then names count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diamant.cleaner.evidence.scan_report import NOT_THERE, ScanReport
from diamant.storage import names
from diamant.storage.checkpoints import TopicPartition, read_partition_metadata
from diamant.storage.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.uuid_text import uuid_to_text

HOLDS = "holds"
BROKEN = "broken"
CANNOT_TELL = "cannot be told"

RECREATED = "topic-recreated"
"""State of a partition of which there is one of another topic of that name."""
UNKNOWN = "unknown"
"""Instead of a topic's id: nothing in the partition's directory tells it."""

Judge = Callable[[Mapping[str, Any], TopicPartition, int], tuple[str, str, int]]
"""Gets a claim, its partition and its end; returns the verdict, the state, and how many records were written since."""


def check_claims(
    certificate: Mapping[str, Any],
    report: ScanReport,
    judge: Judge,
    notes: list[str],
    env: Env,
    directory: str,
    *,
    is_bound: bool,
) -> list[dict[str, Any]]:
    """Return a row for each claim, and add to the notes what has to be said. Blocks.

    `is_bound`: whether what was looked for is known to be what the certificate is about.
    """
    topic_ids = certificate["request"].get("topic_ids", {})
    rows, missing, matching, recreated, unknown = [], 0, 0, 0, 0
    for claim in certificate["claims"]:
        partition, end = partition_of(claim), int(claim["below_offset"])
        verdict, state, since = CANNOT_TELL, NOT_THERE, 0
        known = topic_ids.get(partition[0])
        there = known if known is None else _topic_id(env, directory, partition)
        if partition not in report.partitions:
            missing += 1
        elif there not in (known, UNKNOWN, None):
            recreated += 1
            state = RECREATED
        else:
            verdict, state, since = judge(claim, partition, end)
            if there == UNKNOWN and verdict == HOLDS:
                unknown += 1
                verdict = CANNOT_TELL
        if not is_bound:
            matching += verdict == BROKEN
            verdict = CANNOT_TELL
        rows.append({**untold(claim), "verdict": verdict, "state_now": state, "written_since": since})
    if missing:
        notes.append(missing_note(missing))
    if recreated:
        notes.append(
            f"{recreated} partitions that the certificate makes claims about are of other topics now, which have the names of "
            "those that were deleted since. Nothing can be said of them."
        )
    if unknown:
        notes.append(
            f"Of {unknown} partitions nobody can tell whether they are of the topics that the certificate is about: "
            f"{names.PARTITION_METADATA} is missing in them, or cannot be read."
        )
    if not is_bound:
        notes.append(
            "Without the secret nobody can tell whether what was given to look for is what the certificate is about, so no claim "
            f"is confirmed. Below the claims' ends it is in {matching} of {len(rows)} partitions."
        )
    return rows


def _topic_id(env: Env, directory: str, partition: TopicPartition) -> str | None:
    """Return the id of the topic that a partition in use is of, or `UNKNOWN`; None if there is only what is set aside."""
    path = f"{directory}/{names.partition_dir_name(*partition)}"
    if not env.is_dir(path):
        return None
    try:
        found = read_partition_metadata(env, path)
    except (OSError, CorruptLog):
        return UNKNOWN
    return UNKNOWN if found is None else uuid_to_text(found)


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
