"""Names of files that others have given them: bytes of the data directory as well, each of which stands in a scan's account.

A name with bytes of what a scan looks for is a finding, as if the file held them. What is told of the file has the kind of what
was found there, and the beginning of its digest, in their place: `exports/[key 1437ea35].csv`.

Names that the broker or Kafka gives, and those of directories of partitions, are not looked at: no one can change them.
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
    """Return what is found in a file's name below the data directory; a place outside of it has none."""
    owner, slash, rest = place.name.partition("/")
    given = rest if slash and place.topic is not None else place.name
    if not owner or all(_GIVEN_BY_US.fullmatch(part) for part in given.split("/")):
        return []
    return needles.find(os.fsencode(given))


def shown_name(place: Place, needles: Needles) -> str:
    """Return a file's name as it may stand in a certificate."""
    hits = hits_in_name(place, needles)
    return masked(place, hits) if hits else place.name


def masked(place: Place, hits: list[Hit]) -> str:
    """Return a file's name without what was found in it."""
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
