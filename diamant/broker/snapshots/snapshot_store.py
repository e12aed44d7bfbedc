"""The snapshots of a broker: states to which it can be reset, in a directory beside its data.

    <data>                         the data directory
    <data>.snapshots/<id>          a snapshot: a copy of the data, as after an orderly stop
    <data>.snapshots/reset         while a reset is in progress or unfinished: the snapshot's path
    <data>.snapshots/<id>.making   an unfinished snapshot; a start removes it
    <data>.snapshots/<id>.trash    data replaced by a reset, or a deleted snapshot, until it is removed

`<data>` is the real path of the data directory, whatever path the broker was started with. A snapshot keeps its data until it is
deleted. So erasures are refused while snapshots exist, and snapshots are refused during an erasure. Snapshots are looked for in
all places that the broker knows: beside its data directory, beside a link with which an earlier version was started, and beside
the former place of the data directory if it was moved after its last snapshot.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.operation_errors import NotFound, NotPossible, TooMany
from diamant.broker.snapshots.copy import copy_directory, remove_copy
from diamant.storage import names
from diamant.storage.env.clocks import SystemClock
from diamant.storage.env.env import Env

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

MAX_SNAPSHOTS = 32
_MARK = "reset"
_SUFFIX = ".snapshots"
_MAKING = ".making"
_TRASH = ".trash"


class BrokerSnapshot(NamedTuple):
    """A stored state of a broker. `size_bytes` includes segments that are shared with the broker."""

    id: str
    created_ms: int
    """The time of creation, on the system's clock."""
    size_bytes: int

    def to_fields(self) -> dict[str, object]:
        """Return the fields of the JSON object."""
        return self._asdict()


def snapshots_of(data_dir: str) -> str:
    """Return the path of the directory that holds a data directory's snapshots."""
    return f"{os.path.realpath(data_dir)}{_SUFFIX}"  # the real path, since "." or a link would lead elsewhere


class SnapshotFiles:
    """The snapshots of one data directory on disk. Usable from any thread."""

    def __init__(self, env: Env, data_dir: str) -> None:
        self.env = env
        self.data_dir = data_dir
        self.path = snapshots_of(data_dir)
        self.mark = f"{self.path}/{_MARK}"

    def ids(self) -> list[str]:
        """Return the ids of the complete snapshots."""
        return [name for name in self._names() if name != _MARK and not name.endswith((_MAKING, _TRASH, ".tmp"))]

    def _names(self) -> list[str]:
        return self._names_in(self.path)

    def _names_in(self, path: str) -> list[str]:
        return self.env.list_dir(path) if self.env.is_dir(path) else []

    def note_place(self) -> None:
        """Write the data directory's path into a file in it, so that its snapshots are still found after it was moved."""
        place = os.path.realpath(self.data_dir)
        self.env.write_atomically(f"{self.data_dir}/{names.SNAPSHOTS_NOTE}", os.fsencode(place))

    def places(self) -> list[str]:
        """Return the directories that may hold snapshots of the data directory, this one first."""
        env, found = self.env, [self.path, f"{os.path.abspath(self.data_dir)}{_SUFFIX}"]
        note = f"{self.data_dir}/{names.SNAPSHOTS_NOTE}"
        if env.exists(note):
            noted = os.fsdecode(env.read_bytes(note))
            # In a copied data directory, the note names the original. If that still exists, the snapshots belong to it.
            if not env.exists(f"{noted}/{names.META_PROPERTIES}"):
                found.append(f"{noted}{_SUFFIX}")
        return [*dict.fromkeys(found)]

    def there(self) -> list[str]:
        """Return the paths of everything in the directories of `places`."""
        return [f"{place}/{name}" for place in self.places() for name in self._names_in(place)]

    def making(self, snapshot_id: str) -> str:
        """Return the path of a snapshot while it is being made."""
        return f"{self.path}/{snapshot_id}{_MAKING}"

    def new_trash(self) -> str:
        """Return an unused path for data that is about to be removed."""
        return f"{self.path}/{os.urandom(6).hex()}{_TRASH}"

    def describe(self, snapshot_id: str) -> BrokerSnapshot:
        """Return the description of a snapshot."""
        return BrokerSnapshot(
            snapshot_id, int(snapshot_id.partition("-")[0]), _size(self.env, f"{self.path}/{snapshot_id}")
        )

    async def discard(self, node: Node, path: str) -> None:
        """Remove a path as `remove_copy` does, and then the snapshots' directory if it is empty. Call this on the loop thread."""
        await remove_copy(node, path)
        with suppress(OSError):  # if this fails, the next start removes it
            self._leave()  # not in a thread, since a snapshot might begin in between

    def _leave(self) -> None:
        if not self._names():
            self.env.remove_tree(self.path)

    def sweep(self) -> None:
        """Remove the leftovers of a killed process."""
        self.env.remove(f"{self.mark}.tmp", missing_ok=True)
        for name in self._names():
            if name.endswith((_MAKING, _TRASH)):
                self.env.remove_tree(f"{self.path}/{name}")
        self._leave()

    def check_none(self) -> None:
        """Raise NotPossible with the snapshots' paths if there are any, since they hold data that an erasure must remove."""
        found = self.there()
        if found:
            raise NotPossible(
                f"nothing can be erased while snapshots exist, since they would keep the data: {', '.join(found)}. "
                f"`diamant snapshot delete ID` deletes one in {self.path}; remove others yourself"
            )


def _size(env: Env, path: str) -> int:
    below = (f"{path}/{name}" for name in env.list_dir(path))
    return sum(_size(env, one) if env.is_dir(one) else env.file_size(one) for one in below)


class Snapshots:
    """The snapshots of one broker: creates, lists and deletes them. Belongs to the loop thread."""

    def __init__(self, node: Node, is_erasing: Callable[[], bool]) -> None:
        """`is_erasing()`: true while an erasure or a redaction is pending."""
        self._node = node
        self._is_erasing = is_erasing
        self.files = SnapshotFiles(node.env, node.config.data_dir)

    async def create(self) -> BrokerSnapshot:
        """Create a snapshot of the current state. Raises TooMany, OperationError; NotPossible during an erasure."""
        self.check_not_erasing()
        found = self.files.ids()
        if len(found) >= MAX_SNAPSHOTS:
            raise TooMany(f"there are {len(found)} snapshots, the maximum: delete one first")
        snapshot_id = f"{SystemClock().now_ms()}-{os.urandom(3).hex()}"
        making = self.files.making(snapshot_id)
        try:
            await asyncio.to_thread(self.files.note_place)
            (await copy_directory(self._node, making)).release()
        except BaseException:
            await self.files.discard(self._node, making)
            raise
        self._node.env.rename(making, f"{self.files.path}/{snapshot_id}")
        return await asyncio.to_thread(self.files.describe, snapshot_id)

    async def list(self) -> list[BrokerSnapshot]:
        """Return the snapshots, oldest first."""
        return await asyncio.to_thread(lambda: [self.files.describe(one) for one in sorted(self.files.ids())])

    async def delete(self, snapshot_id: str) -> None:
        """Delete a snapshot. Raises NotFound, NotPossible during a reset."""
        path = self.find(snapshot_id)
        if self._node.is_stopping:
            raise NotPossible("the broker is stopping or being reset, perhaps to this snapshot: try again later")
        trash = self.files.new_trash()
        self._node.env.rename(path, trash)  # in one step, so that no reset uses an incomplete snapshot
        await self.files.discard(self._node, trash)

    def find(self, snapshot_id: str) -> str:
        """Return the path of a snapshot. Raises NotFound."""
        if snapshot_id not in self.files.ids():
            raise NotFound(f"there is no snapshot {snapshot_id!r} in {self.files.path}")
        return f"{self.files.path}/{snapshot_id}"

    def check_not_erasing(self) -> None:
        """Raise NotPossible while an erasure or a redaction is pending, since a reset would restore the removed data."""
        if self._is_erasing():
            raise NotPossible(
                "an erasure or a redaction is pending, and a snapshot or a reset would restore the data that it removes: "
                "let it finish, or cancel it (`diamant cancel`)"
            )
