"""The key with which a broker signs its certificates."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from diamant.broker.operation_errors import NotPossible
from diamant.cleaner.evidence.certificates.files import has_traces
from diamant.cleaner.evidence.certificates.key_location import check_lasting, mount_table
from diamant.cleaner.evidence.certificates.signing_key import SigningKey, check_outside, check_there, default_path
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.broker.node.node import Node


class SigningKeys:
    """The signing key of a broker, loaded on first use."""

    def __init__(self, node: Node, mounts: Callable[[], str] = mount_table) -> None:
        """`node`: its configuration names the key file. `mounts`: returns the text of the mount table."""
        self._node = node
        self._mounts = mounts
        self.loaded: SigningKey | None = None

    async def key(self) -> SigningKey:
        """Return the key; create it if it does not exist. Raises StorageError, OSError."""
        if self.loaded is None:
            self.loaded = await asyncio.to_thread(self._load)
        return self.loaded

    async def usable(self) -> SigningKey:
        """Like `key`, but raises NotPossible for every error."""
        with _no_key_told():
            return await self.key()

    async def existing(self) -> SigningKey | None:
        """Return the key; None if there is none. Never creates one. Raises NotPossible."""
        with _no_key_told():
            if self.loaded is None and not await asyncio.to_thread(self._is_there):
                return None
            return await self.key()

    def _path(self) -> str:
        """Return the path of the key. Raises StorageError if it is not allowed, or if the key was used before and is missing."""
        directory = self._node.config.data_dir
        path = self._node.config.diamant_certificate_key_file or default_path()
        check_outside(path, directory)
        if has_traces(self._node.env, directory):
            check_there(path)
        return path

    def _is_there(self) -> bool:
        path = self._path()
        return os.path.exists(path) and os.path.exists(f"{path}.secret")

    def _load(self) -> SigningKey:
        path = self._path()
        if not self._node.config.diamant_certificate_key_ephemeral:
            check_lasting(path, self._node.config.data_dir, self._mounts())
        return SigningKey.load(path)


@contextmanager
def _no_key_told() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise NotPossible(f"there is no key to sign with, so nothing was changed: {error}") from None
    except OSError as error:
        raise NotPossible(
            f"there is no key to sign with, so nothing was changed: {reason_of(error)}. Let the broker's user write there, "
            "or set diamant.certificate.key.file to another place"
        ) from None


def reason_of(error: Exception) -> str:
    """Return the reason for a failure, without the operating system's error number."""
    if isinstance(error, OSError):
        return (
            f"{error.filename}: {error.strerror}"
            if error.filename
            else (error.strerror or str(error) or type(error).__name__)
        )
    return str(error)
