"""Recognizes the names that the broker and Kafka give to files in a log directory. Any other name was given by someone else.

The patterns are built from the constants in `names` with which the files are named. Numbers must have as many digits as the
broker writes, so that a name has no room for anything else. The name of a directory ends with a slash.
"""

from __future__ import annotations

import re

from diamant.storage import names
from diamant.storage.certificate_states import CERTIFICATE_STATES


def _one_of(*words: str) -> str:
    return f"(?:{'|'.join(map(re.escape, words))})"


_OFFSET = "[0-9]{20}"
_JOB = f"{_one_of(*names.JOB_PREFIXES)}[0-9a-f]{{{names.JOB_ID_LENGTH}}}"
_CERTIFICATE = rf"{_JOB}\.{_one_of(*CERTIFICATE_STATES)}{re.escape(names.CERTIFICATE_SUFFIX)}"
_STAGING = f"{names.STAGING_PREFIX}[0-9a-f]{{16}}-[0-9a-f]{{16}}-[0-9a-f]{{16}}"
_TEMPORARY = f"(?:{re.escape(names.TEMPORARY_SUFFIX)})?"
_SEGMENT = f"{_OFFSET}{_one_of(*names.SEGMENT_SUFFIXES)}(?:{_one_of(*names.STAGE_SUFFIXES)})?"
_OUTPUT = rf"{_STAGING}/(?:(?:[0-9]{{8}}-[0-9]{{1,4}}|segments)/)?(?:{_SEGMENT}|progress)?"

_AT_THE_TOP = re.compile(
    f"(?:{_one_of(*names.DIRECTORY_FILES, f'{names.REMOTE_LOG_INDEX_CACHE}/')}"
    f"|{_JOB}{_one_of(names.INTENT_SUFFIX, names.REMAINS_SUFFIX)}"
    f"|{_CERTIFICATE}(?:{re.escape(names.PENDING_SUFFIX)})?"
    f"|{_STAGING}{re.escape(names.NOTE_SUFFIX)})"
    f"{_TEMPORARY}"
)
_IN_A_PARTITION = re.compile(
    f"(?:{_SEGMENT}"
    f"|{_one_of(names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA, names.FIRST_APPENDS, names.QUORUM_STATE)}"
    f"|{names.FACTS_PREFIX}{_OFFSET}{re.escape(names.FACTS_SUFFIX)}"
    rf"|{_OFFSET}-[0-9]{{10}}(?:-[0-9a-f]{{32}})?{re.escape(names.METADATA_SNAPSHOT_SUFFIX)}"
    f"{_one_of('', names.PART_SUFFIX, names.DELETED_SUFFIX)}"
    f"|{_OUTPUT})"
    f"{_TEMPORARY}"
)
_PARTITION = re.compile(
    rf".+-(?:0|[1-9][0-9]{{0,9}})(?:\.[0-9a-f]{{32}}"
    f"{_one_of(names.DELETE_DIR_SUFFIX, names.FUTURE_DIR_SUFFIX, names.STRAY_DIR_SUFFIX)})?"
)
_IS_JOB = re.compile(f"[0-9a-f]{{{names.JOB_ID_LENGTH}}}")
_IS_CERTIFICATE = re.compile(f"{_CERTIFICATE}(?:{re.escape(names.PENDING_SUFFIX)})?")
_IN_A_STAGING_PLACE = re.compile(_OUTPUT)


def is_given_at_the_top(name: str) -> bool:
    """Return whether the broker or Kafka uses this name directly in a log directory, other than for a partition."""
    return _AT_THE_TOP.fullmatch(name) is not None


def is_given_in_a_partition(name: str) -> bool:
    """Return whether the broker or Kafka uses this name, relative to a partition's directory, for a file in it."""
    return _IN_A_PARTITION.fullmatch(name) is not None


def is_given_to_a_partition(name: str) -> bool:
    """Return whether a directory's name has the form used for partitions, whether in use or set aside."""
    return _PARTITION.fullmatch(name) is not None


def is_given_to_an_output(name: str) -> bool:
    """Return whether a Spark job uses this name, relative to the directory that all jobs share."""
    return _IN_A_STAGING_PLACE.fullmatch(name) is not None


def is_job_id(text: str) -> bool:
    """Return whether a string has the form of the id of an erasure or redaction."""
    return _IS_JOB.fullmatch(text) is not None


def is_certificate_name(name: str) -> bool:
    """Return whether a file in a log directory is named like a certificate, finished or pending."""
    return _IS_CERTIFICATE.fullmatch(name) is not None
