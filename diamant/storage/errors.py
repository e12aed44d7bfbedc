"""The errors of the storage layer.

`StorageError` is the family; an `OSError` from the operating system is passed on as it is (the log that meets one is
taken offline by its owner), and a refused request is a `KafkaError` of the protocol layer.
"""

from __future__ import annotations


class StorageError(Exception):
    """A log directory cannot be used as asked: in use by another process, wrong version, wrong owner."""


class InUse(StorageError):
    """Another process, or another part of this one, holds the directory."""


class CorruptLog(StorageError):
    """Bytes in a file are not what its format demands.

    `path` names the file, `position` the byte (or, in a text file, the line counted from 1) where reading stopped
    making sense, `reason` says what was expected and what was found.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason
