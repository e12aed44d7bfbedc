"""Loss of power below the broker: what it has written and synced, as the library has recorded it, replayed up to any point.

The machine stops there. What was not synced is lost, as a whole or in part, as `tests.memory_env` says; the rest is written to a
directory, and a broker opens it.
"""

from __future__ import annotations

import itertools
import random
import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from diamant.broker.broker import Broker
from diamant.storage.env.env import File
from diamant.storage.errors import StorageError
from tests.broker.wire import WireClient
from tests.memory_env import Loss, MemoryEnv, Tree, tree_of
from tests.torture.checker import certificates, check, check_certificates, unowned, waiting
from tests.torture.history import Finding, History, as_known_at
from tests.torture.producing import Refused, read_offset, wait_for
from tests.torture.program import World
from tests.torture.shim import Entry, entries
from tests.waiting import wait_until

DATA = "/data"
LISTEN = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"


class Disk:
    """A file system in memory to which a record is replayed. `root`: the directory that was recorded."""

    def __init__(self, root: Path) -> None:
        self._root = str(root.resolve())
        self._env = MemoryEnv()
        self._env.make_dirs(DATA)
        self._env.sync_dir("/")
        self._files: dict[int, File] = {}

    def apply(self, entry: Entry) -> None:
        """Make one change, or one sync."""
        env, name = self._env, self._name(entry.name)
        match entry.op:
            case "c":
                self._files[entry.inode] = env.create_new(name)
            case "w":
                self._files[entry.inode].pwrite(entry.data, entry.offset)
            case "t":
                self._files[entry.inode].truncate(entry.offset)
            case "s":
                self._files[entry.inode].sync()
            case "S":
                env.sync_dir(name)
            case "r":
                env.rename(name, self._name(entry.data.decode()))
            case "l":
                env.link(name, self._name(entry.data.decode()))
            case "u":
                env.remove(name)
            case "d":
                env.remove_tree(name)
            case "m":
                env.make_dirs(name)

    def write_after_loss(self, target: Path, loss: Loss | random.Random | None) -> None:
        """Lose power, and write what is left; None: nothing that was not synced is left. This disk stays as it is."""
        lost = self._env.copy()
        lost.crash(loss)
        for name, tree in tree_of(lost):
            if f"/{name}" == DATA:
                _write(target, tree)

    def _name(self, path: str) -> str:
        return DATA + path.removeprefix(self._root)


def _write(target: Path, tree: bytes | Tree) -> None:
    if isinstance(tree, bytes):
        target.write_bytes(tree)
        return
    target.mkdir()
    for name, below in tree:
        _write(target / name, below)


def known_before(marks: Sequence[tuple[int, History]], call: int) -> History:
    """Return the history at the last mark before a call."""
    return max((mark for mark in marks if mark[0] < call), key=lambda mark: mark[0], default=(0, History()))[1]


async def check_opened(data: Path, properties: dict[str, str], known: History) -> None:
    """Open what a loss of power has left, and check it. Finding."""
    check_certificates(data, known, {}, certificates(data))
    try:
        async with (
            Broker(data_dir=data, listen=LISTEN, properties=properties) as broker,
            WireClient(broker.bootstrap_servers.partition(",")[0]) as wire,
        ):
            check(data, known)
            for (group, topic), offsets in known.offsets.items():
                found = await wait_for(partial(read_offset, wire, group, topic))
                if found != offsets.answered and (found not in offsets.asked or found < offsets.answered):
                    raise Finding(f"{group} has committed {offsets.answered} and reads {found}")
            try:
                await wait_until(lambda: not waiting(data) and not unowned(data, known))
            except TimeoutError:
                raise Finding(f"files wait, or nobody owns them: {waiting(data)}, {unowned(data, known)}") from None
    except (OSError, StorageError, TimeoutError) as error:
        raise Finding(f"does not open: {type(error).__name__}: {error}") from error


async def record_steps(world: World, steps: int) -> list[tuple[int, History]]:
    """Start a broker that syncs before it answers, and take steps; return what was known after how many calls."""
    assert world.shim is not None
    marks = []
    await world.start()
    await world.prepare()
    for _ in range(steps):
        try:
            await world.step()
            await world.join()
        except Refused as error:
            world.note(error)
        marks.append((world.shim.calls, world.history.copy()))
    return marks


def chosen_points(chance: random.Random, record: Sequence[Entry], points: int) -> set[int]:
    """Return the changes before which power is lost: half of them where a name was just changed, or a directory synced.

    These are taken in turns from each kind of names: a log has few swaps of segments, and a checkpoint each moment.
    """
    if points >= len(record):
        return set(range(len(record)))
    kinds: dict[str, list[int]] = defaultdict(list)
    for index, before in enumerate(record[:-1], 1):
        if before.op in ("r", "S"):
            kinds[re.sub(r"[0-9a-f]{4,}|\d", "", f"{before.op} {Path(before.name).name}")].append(index)
    mixed = [chance.sample(places, len(places)) for places in chance.sample([*kinds.values()], len(kinds))]
    turns = (index for turn in itertools.zip_longest(*mixed) for index in turn if index is not None)
    chosen = set(itertools.islice(turns, points // 2))
    others = [index for index in range(len(record)) if index not in chosen]
    return chosen | set(chance.sample(others, points - len(chosen)))


async def lose_power(seed: int, place: Path, library: Path, *, steps: int, points: int) -> int:
    """Record a run of a seed, and lose power at some points of it; return their number. Finding."""
    place.joinpath("recorded").mkdir()
    world = World(seed, place / "recorded", library, record=place / "record")
    with world.broker:
        marks = await record_steps(world, steps)
        await world.close()
    record = list(entries((place / "record").read_bytes()))
    chance = random.Random(seed)
    chosen = chosen_points(chance, record, points)
    disk = Disk(world.data)
    for index, entry in enumerate(record):
        if index in chosen:
            known = as_known_at(known_before(marks, entry.call), world.history)
            loss = chance.choice(
                [
                    None,
                    None,
                    Loss(1, 0),
                    Loss(1, 0, is_length_kept=True),
                    Loss(0, 1),
                    Loss(0.5, 0.5),
                    Loss(1, 1),
                    chance,
                ]
            )
            left = place / f"left-{index}"
            disk.write_after_loss(left, loss)
            try:
                await check_opened(left, world.properties, known)
            except Finding as error:
                raise Finding(
                    f"seed {seed}, power lost before change {index} ({entry.op} {entry.name}), {loss}: {error}"
                ) from error
            shutil.rmtree(left)
        disk.apply(entry)
    return len(chosen)
