"""Verdicts on a certificate's claims after a second scan, for erasures and redactions alike.

holds           the partition was read, and nothing of what the certificate covers is left below the claim's end
broken          something that the certificate covers is there again
cannot be told  no record was read; something is unreadable; it is unknown whether the key or description given belongs to the
                certificate; or the partition is missing, or not known to belong to the certificate's topic (`doubt_about`)

Topics are compared by their ids. Ids need no secret, so they are compared without a scan, too. For certificates of earlier
versions, which have no ids, topics are compared by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from diamant.cleaner.evidence.scan.report import NOT_THERE, ScanReport
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.json_types import JsonObject
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition, read_partition_metadata
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.uuid_text import uuid_to_text

HOLDS = "holds"
BROKEN = "broken"
CANNOT_TELL = "cannot be told"

RECREATED = "topic-recreated"
"""The partition exists, but belongs to another topic of the same name."""
UNKNOWN = "unknown"
"""The partition exists, but its directory does not say which topic it belongs to."""

MAX_NAMED = 5
"""Most partitions that one note names."""

_DOUBTS = {
    NOT_THERE: "not there. The topic was deleted since, or this is not the data directory of the certificate. "
    "Nothing can be said about it.",
    RECREATED: "of another topic now. The topic of the certificate was deleted, and this one has its name. "
    "Nothing can be said about it.",
    UNKNOWN: "it is unknown whether this is the topic of the certificate: "
    f"{names.PARTITION_METADATA} is missing, or cannot be read.",
}

Judge = Callable[[Mapping[str, Any], TopicPartition, int], tuple[str, str, int]]
"""Takes a claim, its partition and its end offset; returns the verdict, the state, and the number of records written since."""


def check_claims(
    certificate: Mapping[str, Any],
    report: ScanReport,
    judge: Judge,
    notes: list[str],
    env: Env,
    directory: str,
    *,
    is_bound: bool,
) -> list[JsonObject]:
    """Return a row for each claim, and add notes about doubts. Blocking.

    `is_bound`: whether the key or description given is known to be that of the certificate.
    """
    rows, matching = [], 0
    doubts: dict[str, list[TopicPartition]] = {}
    for claim in certificate["claims"]:
        partition, end = partition_of(claim), int(claim["below_offset"])
        is_read = partition in report.partitions
        doubt = doubt_about(certificate, env, directory, partition) or ("" if is_read else NOT_THERE)
        verdict, state, since = CANNOT_TELL, doubt, 0
        if is_read and doubt != RECREATED:
            verdict, state, since = judge(claim, partition, end)
            if doubt and verdict == HOLDS:
                verdict, state = CANNOT_TELL, doubt
        if doubt:
            doubts.setdefault(doubt, []).append(partition)
        if not is_bound:
            matching += verdict == BROKEN
            verdict = CANNOT_TELL
        rows.append({**untold(claim), "verdict": verdict, "state_now": state, "written_since": since})
    notes += _notes(doubts)
    if not is_bound:
        notes.append(
            "Without the secret it is unknown whether what you gave to look for belongs to this certificate, so no claim "
            f"is confirmed. Below the claims' ends it is in {matching} of {len(rows)} partitions."
        )
    return rows


def disown(certificate: Mapping[str, Any], report: ScanReport, subject: Subject, env: Env, directory: str) -> None:
    """Assign the report's findings to topics, by the certificate's partitions and the directories in use. Blocking."""
    known = {partition_of(one) for name in ("claims", "not_certified") for one in certificate.get(name, ())}
    # No claim is confirmed anyway if its topic is missing or was created again.
    first = {topic: (topic, index) for topic, index in sorted(known, reverse=True)}
    gone = (NOT_THERE, RECREATED)
    there = {one for one in first if doubt_about(certificate, env, directory, first[one]) not in gone}
    later = {one for one in report.partitions if env.is_dir(f"{directory}/{names.partition_dir_name(*one)}")}
    report.disown(subject, there, known, later)


def unscanned_claims(certificate: Mapping[str, Any], notes: list[str], env: Env, directory: str) -> list[JsonObject]:
    """Return rows for the claims when no record was read: `cannot be told` for all, whatever is in the files.

    A row has `state_now` if names and ids show that there is nothing to read; the notes say so. Blocking.
    """
    rows = []
    doubts: dict[str, list[TopicPartition]] = {}
    for claim in certificate["claims"]:
        partition = partition_of(claim)
        doubt = doubt_about(certificate, env, directory, partition)
        if doubt:
            doubts.setdefault(doubt, []).append(partition)
        rows.append({**untold(claim), **({"state_now": doubt} if doubt else {})})
    notes += _notes(doubts)
    return rows


def doubt_about(certificate: Mapping[str, Any], env: Env, directory: str, partition: TopicPartition) -> str:
    """Return "" if the directory holds this partition of the certificate's topic, else `NOT_THERE`, `RECREATED` or `UNKNOWN`."""
    path = f"{directory}/{names.partition_dir_name(*partition)}"
    if not env.is_dir(path):
        return NOT_THERE
    known = certificate["request"].get("topic_ids", {}).get(partition[0])
    if known is None:
        return ""
    try:
        found = read_partition_metadata(env, path)
    except (OSError, CorruptLog):
        found = None
    if found is None:
        return UNKNOWN
    return "" if uuid_to_text(found) == known else RECREATED


def _notes(doubts: Mapping[str, Sequence[TopicPartition]]) -> Iterator[str]:
    for doubt, partitions in doubts.items():
        named = ", ".join(names.partition_dir_name(*one) for one in partitions[:MAX_NAMED])
        more = len(partitions) - MAX_NAMED
        yield f"{named}{f' and {more} more' if more > 0 else ''}: {_DOUBTS[doubt]}"


def partition_of(claim: Mapping[str, Any]) -> TopicPartition:
    """Return the partition of a claim."""
    return str(claim["topic"]), int(claim["partition"])


def untold(claim: Mapping[str, Any]) -> JsonObject:
    """Return the row of a claim with the verdict `cannot be told`."""
    return {
        "topic": claim["topic"],
        "partition": claim["partition"],
        "below_offset": claim["below_offset"],
        "verdict": CANNOT_TELL,
        "written_since": 0,
    }
