"""Files beside certificates that only their owner may read: intents of jobs that are not over.

    <data directory>/<prefix><id>.intent     mode 0600

An intent is JSON, encrypted with a key that comes from the secret beside the signing key (`SigningKey.encrypt`): the data
directory itself tells nothing of what is to be gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from diamant.cleaner.evidence.certificates.signing_key import MODE, SigningKey
from diamant.storage.env.env import Env

PREFIX = "diamant-erasure-"
REDACTION_PREFIX = "diamant-redaction-"
"""Of redactions, whose files lie beside those of erasures."""
SUFFIX = ".intent"
MAX_BYTES = 256 * 1024 * 1024


class AnyIntent(Protocol):
    """An intent as its file sees it."""

    @property
    def id(self) -> str:
        """Stands in the name of the file."""
        ...

    def to_bytes(self) -> bytes:
        """Return what is encrypted."""
        ...


IntentT = TypeVar("IntentT", bound=AnyIntent)


class IntentFiles(Generic[IntentT]):
    """The intents of one kind in a data directory. Methods block."""

    def __init__(self, env: Env, directory: str, prefix: str, decode: Callable[[bytes], IntentT]) -> None:
        """`decode` returns an intent from what `to_bytes` gave; ValueError for anything else."""
        self.env = env
        self.directory = directory
        self.prefix = prefix
        self._decode = decode

    def path(self, intent_id: str) -> str:
        """Return where an intent lies."""
        return f"{self.directory}/{self.prefix}{intent_id}{SUFFIX}"

    def ids(self) -> list[str]:
        """Return the ids of the jobs that are not over."""
        names = self.env.list_dir(self.directory)
        return [
            name[len(self.prefix) : -len(SUFFIX)]
            for name in names
            if name.startswith(self.prefix) and name.endswith(SUFFIX)
        ]

    def read(self, intent_id: str, key: SigningKey) -> IntentT:
        """Return an intent. ValueError if it cannot be read with this secret; OSError."""
        path = self.path(intent_id)
        if self.env.file_size(path) > MAX_BYTES:
            raise ValueError(f"{path}: more than {MAX_BYTES} bytes")
        return self._decode(key.decrypt(self.env.read_bytes(path)))

    def write(self, intent: IntentT, key: SigningKey) -> None:
        """Put an intent on disk, durably, in place of an earlier one. OSError."""
        write_private(self.env, self.path(intent.id), key.encrypt(intent.to_bytes()))

    def remove(self, intent_id: str) -> None:
        """Remove one, durably."""
        remove_private(self.env, self.path(intent_id))


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
        env.rename(temporary, path)
    except OSError:
        env.remove(temporary, missing_ok=True)
        raise
    env.sync_dir(os.path.dirname(path))


def remove_private(env: Env, path: str) -> None:
    """Remove such a file, durably, and what a crash has left of writing it."""
    env.remove(path, missing_ok=True)
    env.remove(path + ".tmp", missing_ok=True)
    env.sync_dir(os.path.dirname(path))
