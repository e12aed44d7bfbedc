"""The ends of the logs in a directory that a running Kafka writes to, found without it.

A certifying scan reads the active segment up to its last whole batch, so that appends do not disturb it. Read-only.
"""

from __future__ import annotations

import os
from functools import partial
from struct import Struct

from diamant.cleaner.evidence.search.file_census import Identity, file_identity
from diamant.cleaner.evidence.search.offset_order import LogEnd
from diamant.protocol.batches.header import LAST_OFFSET_DELTA, LOG_OVERHEAD
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env

_PREFIX, _DELTA = Struct(">qi"), Struct(">i")
_HEAD_BYTES = LAST_OFFSET_DELTA + _DELTA.size


def log_ends(env: Env, directory: str) -> dict[TopicPartition, LogEnd]:
    """Return the present end of each log; a log that changes while it is looked at, or is damaged, has none. Blocks."""
    found = {}
    for name in sorted(env.list_dir(directory)):
        path = f"{directory}/{name}"
        if names.set_aside_suffix(name) or not env.is_dir(path):
            continue
        try:
            partition = names.parse_partition_dir(name)
        except ValueError:
            continue
        files = map(names.parse_segment_file, env.list_dir(path))
        bases = [one.offset for one in files if one is not None and one.suffix == names.LOG_SUFFIX and not one.stage]
        if bases and (end := _end(env, path, max(bases))) is not None:
            found[partition] = end
    return found


def _end(env: Env, path: str, base_offset: int) -> LogEnd | None:
    try:
        file = env.open(names.log_file(path, base_offset), read_only=True)
    except OSError:
        return None
    try:
        size, position, next_offset = file.size(), 0, base_offset
        while position + _HEAD_BYTES <= size:
            head = file.pread(_HEAD_BYTES, position)
            if len(head) < _HEAD_BYTES:
                break
            offset, length = _PREFIX.unpack_from(head)
            if length <= 0 or position + LOG_OVERHEAD + length > size:
                break
            is_current = head[16] == 2
            next_offset = offset + 1 + (_DELTA.unpack_from(head, LAST_OFFSET_DELTA)[0] if is_current else 0)
            position += LOG_OVERHEAD + length
    except OSError:
        return None
    finally:
        file.close()
    return LogEnd(next_offset, base_offset, position, partial(_size, path), partial(_has_file, env, path))


def _size(path: str, base_offset: int) -> int | None:
    try:
        return os.stat(names.log_file(path, base_offset)).st_size
    except OSError:
        return None


def _has_file(env: Env, path: str, base_offset: int, identity: Identity) -> bool:
    try:
        return file_identity(env, names.log_file(path, base_offset))[0] == identity
    except OSError:
        return False
