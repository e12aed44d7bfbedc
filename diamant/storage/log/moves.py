"""Files of one partition that get other names, as plain values: what is to be done, by the broker or by another process.

A `Replacement` plans them in steps. Its owner carries them out (`in_turns`), or has a process do so that it talks to. Within one
step the files are taken in the order of the fields. It may be carried out again after a process has died in the middle of it:
what is done stays done.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, Protocol

from diamant.storage import names
from diamant.storage.env.env import Env

Rename = tuple[str, str]
"""The present name of a file and its new one, without directory."""


class Moves(NamedTuple):
    """What to do in `directory`. Names are without it."""

    directory: str
    guard: str = ""
    """A file that loses its name with the first of `arriving`. Without it `retiring` is over: the names may be others' by now."""
    retiring: tuple[str, ...] = ()
    """Files that get the suffix `.deleted`; those that are not there are passed over."""
    dropped: tuple[str, ...] = ()
    """Files that are removed; those that are not there are passed over."""
    arriving: tuple[Rename, ...] = ()
    """Renames. A `.log` file must be there, under the old or the new name; others need not exist."""
    outdated: tuple[str, ...] = ()
    """As `retiring`, and independent of the guard."""
    is_synced: bool = False
    """True if the directory's entries are to be durable in the end."""

    @property
    def renames(self) -> dict[str, str]:
        """New paths by old ones."""
        retiring = [(name, name + names.DELETED_SUFFIX) for name in self.retiring]
        return {f"{self.directory}/{old}": f"{self.directory}/{new}" for old, new in (*retiring, *self.arriving)}


def moves_from(fields: list[Any]) -> Moves:
    """Return the moves that JSON has made a list of."""
    directory, guard, retiring, dropped, arriving, outdated, is_synced = fields
    renames = tuple((old, new) for old, new in arriving)
    return Moves(directory, guard, tuple(retiring), tuple(dropped), renames, tuple(outdated), is_synced)


class MovesDirectory(Protocol):
    """The directory of some moves."""

    def exists(self, name: str) -> bool:
        """Tell whether there is a file of that name."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; no error if there is none."""
        ...

    def sync(self) -> None:
        """Make the entries durable."""
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
    """Carry out moves. OSError at the first that fails; those behind it are not tried."""
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
    """Carry out steps here, one after the other; their owner may do other work whenever something is yielded.

    `moves` is the present step, if there is one; what `steps` makes of an OSError comes out.
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
