"""Files beside certificates that only their owner may read: the intents of unfinished jobs, and remains (`search.remains`).

    <data directory>/<prefix><id>.intent     mode 0600
    <data directory>/<prefix><id>.remains    mode 0600

They are JSON, encrypted with a key derived from the secret beside the signing key (`SigningKey.encrypt`). So the data
directory alone does not reveal what is to be removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from diamant.cleaner.evidence.certificates.signing_key import MODE, SigningKey
from diamant.storage import names
from diamant.storage.env.env import MAX_STATE_FILE, Env
from diamant.storage.given_names import is_job_id
from diamant.storage.input_file import open_regular


class AnyIntent(Protocol):
    """The part of an intent that its file needs."""

    @property
    def id(self) -> str:
        """Part of the file's name."""
        ...

    def to_bytes(self) -> bytes:
        """Return the bytes to encrypt."""
        ...


IntentT = TypeVar("IntentT", bound=AnyIntent)


class IntentFiles(Generic[IntentT]):
    """The intents of one kind, or the remains, in a data directory. Its methods block."""

    def __init__(
        self,
        env: Env,
        directory: str,
        prefix: str,
        decode: Callable[[bytes], IntentT],
        suffix: str = names.INTENT_SUFFIX,
    ) -> None:
        """`decode` turns the bytes of `to_bytes` into an intent, and raises ValueError for any other bytes."""
        self.env = env
        self.directory = directory
        self.prefix = prefix
        self._decode = decode
        self._suffix = suffix

    def path(self, intent_id: str) -> str:
        """Return the path of an intent."""
        return f"{self.directory}/{self.prefix}{intent_id}{self._suffix}"

    def ids(self) -> list[str]:
        """Return the ids of the unfinished jobs."""
        files = [name for name in self.env.list_dir(self.directory) if name.startswith(self.prefix)]
        ids = [name[len(self.prefix) : -len(self._suffix)] for name in files if name.endswith(self._suffix)]
        # Other names were given by others, and must not appear as ids in lists and logs.
        return [one for one in ids if is_job_id(one)]

    def read(self, intent_id: str, key: SigningKey) -> IntentT:
        """Return an intent. Raises ValueError if this secret cannot decrypt it; raises OSError."""
        return self._decode(key.decrypt(self.env.read_bytes(self.path(intent_id), MAX_STATE_FILE)))

    def write(self, intent: IntentT, key: SigningKey) -> None:
        """Write an intent durably, replacing an earlier one. Raises OSError."""
        write_private(self.env, self.path(intent.id), key.encrypt(intent.to_bytes()))

    def remove(self, intent_id: str) -> None:
        """Remove an intent, durably."""
        remove_private(self.env, self.path(intent_id))


def write_private(env: Env, path: str, data: bytes) -> None:
    """Write a file of mode 0600 durably, replacing an earlier one. Blocking; raises OSError."""
    temporary = path + ".tmp"
    fd, _ = open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE)
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
    """Remove a private file, and the rest of an interrupted write, durably."""
    env.remove(path, missing_ok=True)
    env.remove(path + ".tmp", missing_ok=True)
    env.sync_dir(os.path.dirname(path))
