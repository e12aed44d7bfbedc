"""Files beside the certificates that only their owner may read: intents of unfinished jobs, and remains (`search.remains`).

    <data directory>/<prefix><id>.intent     mode 0600
    <data directory>/<prefix><id>.remains    mode 0600

They contain JSON, encrypted with a key that is derived from the secret beside the signing key (`SigningKey.encrypt`). So the data
directory alone does not reveal what the jobs have to remove.
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
    """The part of an intent that `IntentFiles` uses."""

    @property
    def id(self) -> str:
        """The id, which is part of the file name."""
        ...

    def to_bytes(self) -> bytes:
        """Return the bytes to encrypt."""
        ...


IntentT = TypeVar("IntentT", bound=AnyIntent)


class IntentFiles(Generic[IntentT]):
    """The files of all intents of one kind, or of all remains, in a data directory. The methods do blocking I/O."""

    def __init__(
        self,
        env: Env,
        directory: str,
        prefix: str,
        decode: Callable[[bytes], IntentT],
        suffix: str = names.INTENT_SUFFIX,
    ) -> None:
        """`decode` parses the output of an intent's `to_bytes`, and raises ValueError for any other input."""
        self.env = env
        self.directory = directory
        self.prefix = prefix
        self._decode = decode
        self._suffix = suffix

    def path(self, intent_id: str) -> str:
        """Return the path of an intent's file."""
        return f"{self.directory}/{self.prefix}{intent_id}{self._suffix}"

    def ids(self) -> list[str]:
        """Return the ids of the jobs that have such a file."""
        files = [name for name in self.env.list_dir(self.directory) if name.startswith(self.prefix)]
        ids = [name[len(self.prefix) : -len(self._suffix)] for name in files if name.endswith(self._suffix)]
        # The broker did not create files with other names. Lists and logs must not show those names as ids.
        return [one for one in ids if is_job_id(one)]

    def read(self, intent_id: str, key: SigningKey) -> IntentT:
        """Read and decrypt an intent. Raises OSError, and ValueError if the secret of `key` cannot decrypt it."""
        return self._decode(key.decrypt(self.env.read_bytes(self.path(intent_id), MAX_STATE_FILE)))

    def write(self, intent: IntentT, key: SigningKey) -> None:
        """Write an intent durably, replacing an earlier one. Raises OSError."""
        write_private(self.env, self.path(intent.id), key.encrypt(intent.to_bytes()))

    def remove(self, intent_id: str) -> None:
        """Remove an intent, durably."""
        remove_private(self.env, self.path(intent_id))


def write_private(env: Env, path: str, data: bytes) -> None:
    """Write a file with mode 0600 durably, replacing an earlier one. Does blocking I/O; raises OSError."""
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
    """Remove a private file, and anything that an interrupted write left, durably."""
    env.remove(path, missing_ok=True)
    env.remove(path + ".tmp", missing_ok=True)
    env.sync_dir(os.path.dirname(path))
