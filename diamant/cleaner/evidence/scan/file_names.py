"""Names of files that were given by others. They are bytes of the data directory as well, and stand in a scan's account.

A name that contains what a scan looks for is a finding, as if the file contained it. Reports then show the file with the kind
of the finding and the beginning of its digest instead: `exports/[key 1437ea35].csv`.

Names given by the broker or by Kafka, including those of partition directories, are not searched: they cannot be changed.
"""

from __future__ import annotations

import os
import re

from diamant.cleaner.evidence.scan.file_listing import Place
from diamant.cleaner.evidence.search.needles import Hit, Needles
from diamant.storage import names

SHOWN_DIGEST_BYTES = 4

_OURS = (
    names.LOCK,
    names.CLEAN_SHUTDOWN,
    names.META_PROPERTIES,
    names.BOOTSTRAP_CHECKPOINT,
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
    names.HIGH_WATERMARK_CHECKPOINT,
    names.CLEANER_CHECKPOINT,
    names.LEADER_EPOCH_CHECKPOINT,
    names.PARTITION_METADATA,
    names.QUORUM_STATE,
    names.REMOTE_LOG_INDEX_CACHE,
)
_GIVEN_BY_US = re.compile(
    rf"(?:\d{{20}}(?:-\d{{10}})?|diamant-[a-z-]*(?:[0-9a-f]{{8,}}|\d+)?|{'|'.join(map(re.escape, _OURS))})(?:\.[a-z-]+)*"
)


def hits_in_name(place: Place, needles: Needles) -> list[Hit]:
    """Return the findings in a file's name below the data directory; none for a place outside."""
    owner, slash, rest = place.name.partition("/")
    given = rest if slash and place.topic is not None else place.name
    if not owner or all(_GIVEN_BY_US.fullmatch(part) for part in given.split("/")):
        return []
    return needles.find(os.fsencode(given))


def shown_name(place: Place, needles: Needles) -> str:
    """Return a file's name in the form that certificates show."""
    hits = hits_in_name(place, needles)
    return masked(place, hits) if hits else place.name


def masked(place: Place, hits: list[Hit]) -> str:
    """Return a file's name with its findings masked."""
    whole = os.fsencode(place.name)
    owner, slash, _ = place.name.partition("/")
    skipped = len(os.fsencode(owner + slash)) if slash and place.topic is not None else 0
    found, at = b"", 0
    for hit in sorted(hits, key=lambda one: (one.start, -one.needle.size)):
        start = skipped + hit.start
        if start >= at:
            label = f"[{hit.needle.kind} {hit.needle.digest[:SHOWN_DIGEST_BYTES].hex()}]"
            found += whole[at:start] + label.encode()
        at = max(at, start + hit.needle.size)
    return os.fsdecode(found + whole[at:])
