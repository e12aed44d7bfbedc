"""Renames and removals of a partition's files, described as plain values that the broker or another process carries out.

A `Replacement` plans them in steps. Its owner carries out each step itself (`in_turns`) or sends it to a worker process. A step
handles files in the order of the fields of `Moves`. It is idempotent: if a process dies halfway, another can run it again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, Protocol

from diamant.storage import names
from diamant.storage.env.env import Env

Rename = tuple[str, str]
"""The current and the new name of a file, without directory."""


class Moves(NamedTuple):
    """One step of moves in `directory`. Names exclude the directory."""

    directory: str
    guard: str = ""
    """The file that `arriving` renames first. If it is missing, `retiring` is done, and its names may be in use again."""
    retiring: tuple[str, ...] = ()
    """Files to which the suffix `.deleted` is added; missing ones are skipped."""
    dropped: tuple[str, ...] = ()
    """Files to remove; missing ones are skipped."""
    arriving: tuple[Rename, ...] = ()
    """Renames. A `.log` file must exist under its old or its new name; other files may be missing."""
    outdated: tuple[str, ...] = ()
    """Like `retiring`, but independent of the guard."""
    is_synced: bool = False
    """True if the step ends with a sync of the directory."""

    @property
    def renames(self) -> dict[str, str]:
        """Old paths mapped to new ones."""
        retiring = [(name, name + names.DELETED_SUFFIX) for name in self.retiring]
        return {f"{self.directory}/{old}": f"{self.directory}/{new}" for old, new in (*retiring, *self.arriving)}


def moves_from(fields: list[Any]) -> Moves:
    """Build moves from their JSON list."""
    directory, guard, retiring, dropped, arriving, outdated, is_synced = fields
    renames = tuple((old, new) for old, new in arriving)
    return Moves(directory, guard, tuple(retiring), tuple(dropped), renames, tuple(outdated), is_synced)


class MovesDirectory(Protocol):
    """The directory in which moves are carried out."""

    def exists(self, name: str) -> bool:
        """Return whether the file exists."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        ...

    def sync(self) -> None:
        """Make the entries of the directory durable."""
        ...


class EnvDirectory:
    """A directory of an `Env`."""

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self._path = path

    def exists(self, name: str) -> bool:
        return self._env.exists(f"{self._path}/{name}")

    def rename(self, old: str, new: str) -> None:
        self._env.rename(f"{self._path}/{old}", f"{self._path}/{new}")

    def remove(self, name: str) -> None:
        self._env.remove(f"{self._path}/{name}", missing_ok=True)

    def sync(self) -> None:
        self._env.sync_dir(self._path)


def carry_out(place: MovesDirectory, moves: Moves) -> None:
    """Carry out moves. Raises OSError at the first failure, without trying the remaining moves."""
    if moves.retiring and place.exists(moves.guard):
        _delete(place, moves.retiring)
    for name in moves.dropped:
        place.remove(name)
    for old, new in moves.arriving:
        try:
            place.rename(old, new)
        except FileNotFoundError:
            if names.LOG_SUFFIX in old and not place.exists(new):
                raise
    _delete(place, moves.outdated)
    if moves.is_synced:
        place.sync()


def in_turns(place: MovesDirectory, steps: Generator[Moves], moves: Moves | None = None) -> Iterator[None]:
    """Carry out steps in this process, one after the other; the owner may do other work at each yield.

    `moves` is the step that `steps` has yielded last, if any. An OSError is thrown into `steps`, and its exceptions propagate.
    """
    if moves is None:
        moves = next(steps, None)
    while moves is not None:
        try:
            carry_out(place, moves)
        except OSError as error:
            moves = steps.throw(error)
        else:
            moves = next(steps, None)
        if moves is not None:
            yield


def _delete(place: MovesDirectory, files: tuple[str, ...]) -> None:
    for name in files:
        try:
            place.rename(name, name + names.DELETED_SUFFIX)
        except FileNotFoundError:
            pass
