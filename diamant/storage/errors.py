"""The errors of the storage layer.

`StorageError` is their base class. An `OSError` from the operating system propagates unchanged (the owner of the affected log
takes it offline); a refused request is a `KafkaError` of the protocol layer.
"""

from __future__ import annotations


class StorageError(Exception):
    """A log directory cannot be used as requested: for example, its lock is held, or its version or owner is wrong."""


class InUse(StorageError):
    """Another process, or another part of this one, holds the directory."""


class WrongInput(StorageError):
    """The caller names something that does not exist, such as a directory without logs, or passes a wrong value."""


class RecordTooLarge(StorageError):
    """A record in a compressed batch exceeds its topic's `max.decompressed.message.bytes`, which used to be higher.

    `path` names the file, `position` the start of the batch, `reason` the sizes.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at {position}: {reason} It can be read once max.decompressed.message.bytes is raised")
        self.path = path
        self.position = position
        self.reason = reason


class CorruptLog(StorageError):
    """The contents of a file violate its format.

    `path` names the file, `position` the first invalid byte (in a text file, the line, counted from 1), and `reason` the expected
    and actual contents.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason
