"""Verdicts on the claims of an erasure's or redaction's certificate after a second scan.

holds           the partition was read, and nothing that the certificate covers is left below the claim's end
broken          something that the certificate covers is there again
cannot be told  no record was read; something is unreadable; the given key or description may not be the certificate's; or the
                partition is missing, or may not belong to the certificate's topic (`doubt_about`)

Topics are compared by id, even if there is no scan, because this needs no secret. Certificates of earlier versions have no ids,
so their topics are compared by name.
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
"""The partition exists, but belongs to another topic with the same name."""
UNKNOWN = "unknown"
"""The partition exists, but its directory does not say which topic it belongs to."""

MAX_NAMED = 5
"""Maximum number of partitions named in one note."""

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
    """Return a row for each claim, and append notes about partitions in doubt to `notes`. Does blocking I/O.

    `is_bound`: True if the given key or description is known to belong to the certificate. Otherwise no claim is confirmed.
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
    """Detach findings from partitions that the certificate's topics do not have (`ScanReport.disown`). Does blocking I/O."""
    known = {partition_of(one) for name in ("claims", "not_certified") for one in certificate.get(name, ())}
    # Topics that are missing or were recreated are left out: none of their claims is confirmed anyway.
    first = {topic: (topic, index) for topic, index in sorted(known, reverse=True)}
    gone = (NOT_THERE, RECREATED)
    there = {one for one in first if doubt_about(certificate, env, directory, first[one]) not in gone}
    later = {one for one in report.partitions if env.is_dir(f"{directory}/{names.partition_dir_name(*one)}")}
    report.disown(subject, there, known, later)


def unscanned_claims(certificate: Mapping[str, Any], notes: list[str], env: Env, directory: str) -> list[JsonObject]:
    """Return a row with the verdict `cannot be told` for each claim, because no record was read.

    If the partition is missing, or belongs or may belong to another topic, its row says so in `state_now`, and a note is added.
    Does blocking I/O.
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
    """Return a row with the verdict `cannot be told` for a claim."""
    return {
        "topic": claim["topic"],
        "partition": claim["partition"],
        "below_offset": claim["below_offset"],
        "verdict": CANNOT_TELL,
        "written_since": 0,
    }
