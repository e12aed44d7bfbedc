"""The broker's own files beside the logs, which contain topic names and ids that may match what a scan looks for.

    *-checkpoint       topic names, with numbers
    meta.properties    the ids of the cluster and of the directory

These files cannot contain records, and the names and ids cannot be removed from them. So a finding within a name or id does not
block a certificate; it is listed in `ScanReport.elsewhere`. If a file has a different format or further findings, none of its
findings is exempt.
"""

from __future__ import annotations

import re

from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.search.findings import RAW
from diamant.cleaner.evidence.search.needles import Needles
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import read_offset_checkpoint
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.properties import parse_properties

CHECKPOINTS = frozenset(
    (
        names.RECOVERY_POINT_CHECKPOINT,
        names.LOG_START_OFFSET_CHECKPOINT,
        names.HIGH_WATERMARK_CHECKPOINT,
        names.CLEANER_CHECKPOINT,
        names.LAST_CLEANED_CHECKPOINT,
    )
)
_FILES = CHECKPOINTS | {names.META_PROPERTIES}

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""A legal topic name (Kafka's Topic.validate)."""

NOT_COVERED = (
    "Names of topics, and ids of the cluster and its directory, in the broker's own files beside the logs: some contain bytes of "
    "what is gone. They are listed under elsewhere."
)


def set_names_aside(report: ScanReport, env: Env, directory: str, needles: Needles) -> bool:
    """Move findings within names and ids to `report.elsewhere`, and return whether there were any. Does blocking I/O.

    Keeps one such file (at most `env.MAX_SMALL_FILE` bytes) and its entries in memory at a time.
    """
    files = {one.file for one in report.astray if one.what == RAW} & _FILES
    return report.set_aside({one for one in files if _is_in_names_only(env, directory, one, needles)})


def not_covered(report: ScanReport) -> list[str]:
    """Return the sentence that a certificate needs about such findings, in a list; an empty list if there are none."""
    return [NOT_COVERED] if any(one.topic is None and one.file in _FILES for one in report.elsewhere) else []


def _is_in_names_only(env: Env, directory: str, file: str, needles: Needles) -> bool:
    path = f"{directory}/{file}"
    try:
        if file in CHECKPOINTS:
            # Reading fails if the file contains anything but topic names and numbers, so only the names need a check.
            return all(_TOPIC.fullmatch(topic) for topic, _ in read_offset_checkpoint(env, path))
        text = env.read_bytes(path).decode("latin-1")
    except (OSError, StorageError):
        return False
    # If a name occurs twice, the last line applies. Earlier lines do not count as ids, so they are searched.
    properties = parse_properties(text)
    ids = {f"{name}={properties.get(name)}" for name in ("cluster.id", "directory.id")}
    return not needles.find("\n".join(line for line in text.split("\n") if line not in ids).encode("latin-1"))
