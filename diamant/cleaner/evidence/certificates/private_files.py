"""Files beside certificates that only their owner may read."""

from __future__ import annotations

import os

from diamant.cleaner.evidence.certificates.signing_key import MODE
from diamant.storage.env.env import Env

PREFIX = "diamant-erasure-"


SUFFIX = ".intent"


MAX_BYTES = 256 * 1024 * 1024


def intent_path(directory: str, intent_id: str) -> str:
    """Return where an intent lies."""
    return f"{directory}/{PREFIX}{intent_id}{SUFFIX}"


def write_private(env: Env, path: str, data: bytes) -> None:
    """Put a file of mode 0600 on disk, durably, in place of an earlier one. Blocks; OSError."""
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, MODE)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), MODE)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        env.remove(temporary, missing_ok=True)
        raise
    env.rename(temporary, path)
    env.sync_dir(os.path.dirname(path))


def remove_intent(env: Env, directory: str, intent_id: str) -> None:
    """Remove it, durably."""
    remove_private(env, intent_path(directory, intent_id))


def remove_private(env: Env, path: str) -> None:
    """Remove such a file, durably, and what a crash has left of writing it."""
    env.remove(path, missing_ok=True)
    env.remove(path + ".tmp", missing_ok=True)
    env.sync_dir(os.path.dirname(path))
