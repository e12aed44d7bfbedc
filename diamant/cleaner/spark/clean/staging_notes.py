"""What a log directory remembers of copies outside of it: a note of each place of a job, from before it is made until it is gone.

    <log directory>/<name of the place>.note          {"root": "/mnt/shared/staging", "identity": [1234, 1790000000000]}

A staging place whose disk is not mounted looks like one with nothing in it, and nobody looks at one that is configured no more.
As long as there is a note, a place may still be where it was: whoever certifies what is gone has to have seen that it is not
(`is_seen_at`). As a rule the note goes with the place, and a log directory that never used Spark has none.

`identity` tells the directory that the place was in from another one of its name: number and time of birth of the inode, the same
whenever its disk is mounted. It is null elsewhere (s3:), where the name is enough. A note has no credentials, which the text of
a location leaves out, and is durable before its place is made. Blocks for the disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diamant.storage import names
from diamant.storage.env.birth_time import birth_ms

if TYPE_CHECKING:
    from diamant.cleaner.spark.environment.locations import Location
    from diamant.storage.env.env import Env

SUFFIX = ".note"


@dataclass(frozen=True, slots=True)
class Note:
    """Of a place that may be there."""

    path: str
    """Of the note."""
    name: str
    """Of the place."""
    root: str = ""
    """What it was made in; empty if the note is damaged."""
    identity: Any = None

    def is_seen_at(self, root: Location) -> bool:
        """Tell whether who lists `root` sees the place, if it is still there."""
        try:
            return self.root == str(root) and self.identity == _identity(root)
        except OSError:
            return False


def write_note(env: Env, log_directory: str, place: Location) -> None:
    """Note that `place`, which lies in a directory that is there, is about to be made. OSError."""
    root = place.parent
    fields = {"root": str(root), "identity": _identity(root)}
    env.write_atomically(_path(log_directory, place.name), json.dumps(fields).encode())


def read_notes(env: Env, log_directory: str) -> list[Note]:
    """Return all notes. OSError if the log directory cannot be listed, or one of them read."""
    found = []
    for file in env.list_dir(log_directory):
        if file.startswith(names.STAGING_PREFIX) and file.endswith(SUFFIX):
            with suppress(FileNotFoundError):
                found.append(_read(env, log_directory, file.removesuffix(SUFFIX)))
    return found


def forget(env: Env, log_directory: str, place: Location) -> None:
    """Remove the note of a place that was removed, unless that was done on another disk than it had been made on. OSError."""
    with suppress(FileNotFoundError):
        note = _read(env, log_directory, place.name)
        if note.is_seen_at(place.parent):
            env.remove(note.path, missing_ok=True)


def forget_gone(env: Env, log_directory: str, root: Location, is_over: Callable[[str], bool]) -> None:
    """Remove the notes of places that were in `root` and are not any more. OSError or StorageError.

    `is_over`: whether a place of this name will not be made any more by whoever has noted it.
    """
    notes = [note for note in read_notes(env, log_directory) if is_over(note.name) and note.is_seen_at(root)]
    if not notes:
        return
    there: set[str] = set()
    with suppress(FileNotFoundError):  # as an object store has it when it is empty
        there = {entry.name for entry in root.entries()}
    for note in notes:
        if note.name not in there and note.is_seen_at(root):
            env.remove(note.path, missing_ok=True)


def _read(env: Env, log_directory: str, name: str) -> Note:
    path = _path(log_directory, name)
    data = env.read_bytes(path)
    try:
        fields = json.loads(data)
        return Note(path, name, str(fields["root"]), fields["identity"])
    except (ValueError, KeyError, TypeError):
        return Note(path, name)


def _path(log_directory: str, name: str) -> str:
    return f"{log_directory}/{name}{SUFFIX}"


def _identity(root: Location) -> list[int | None] | None:
    return [os.stat(root.path).st_ino, birth_ms(root.path)] if root.is_local else None
