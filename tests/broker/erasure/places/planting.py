"""Plants files beside the logs of a broker: copies of values under random names, as bytes and in batches, behind links."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Header, Record
from tests.builder import make_message, make_wrapper

NAMES = (
    "00000000000000000000.log", "00000000000000099999.log", "0.log", "7.log.deleted", "00000000000000000003.log.cleaned",
    "00000000000000000004.log.swap", "00000000000000000000.log.bak", "0.log.1", "0.log.tmp", "copy.log", "copy", ".hidden",
    "00000000000000000000.index", "00000000000000000077.timeindex", "00000000000000000005.snapshot", "notes.txt",
    "diamant-copy.json", "leader-epoch-checkpoint.tmp", "00000000000000000000.log.aside", "core.12345", "a b\n.log", "ö.log",
)  # fmt: skip
UNIQUE = "0123456789abcdef0123456789abcdef"
PLACES = (
    "", "backup", "deep/er/still", "{topic}-0", "{topic}-1", "{topic}-0/sub", "other-0", "other-0/sub", "{topic}-0.{id}-stray",
    "{topic}-9.{id}-stray", "{topic}-0.{id}-delete", "{topic}-9.{id}-future", "other-0.{id}-stray", "{topic}-0.{id}",
    "__consumer_offsets-0", "lost-0",
)  # fmt: skip
LINKS = ("none", "none", "none", "hard", "hard elsewhere", "soft", "soft to outside")


@dataclass(slots=True)
class Planted:
    """The planted files of a test, to be removed again."""

    paths: list[Path] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def remove(self) -> None:
        """Remove all of them that still exist."""
        for path in self.paths:
            path.unlink(missing_ok=True)
        for path in self.made:
            shutil.rmtree(path, ignore_errors=True)


def plant(
    rng: random.Random,
    data: Path,
    outside: Path,
    topic: str,
    key: bytes,
    value: bytes,
    places: Sequence[str] = PLACES,
) -> Planted:
    """Plant up to three copies; none in one case of eight."""
    planted = Planted()
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        _plant_one(rng, data, outside, topic, key, value, planted, places)
    return planted


def _plant_one(
    rng: random.Random,
    data: Path,
    outside: Path,
    topic: str,
    key: bytes,
    value: bytes,
    planted: Planted,
    places: Sequence[str],
) -> None:
    place = rng.choice(places).format(topic=topic, id=UNIQUE)
    name, link = rng.choice(NAMES), rng.choice(LINKS)
    form, content = _content(rng, data, topic, key, value)
    path = _at(data / place / name, data, planted)
    if path.exists() or path.is_symlink():
        path = path.with_name(f"{rng.randrange(1 << 30)}-{name}")
    planted.told.append(f"{place}/{name!r}: {form}, link {link}")
    first = path
    if link == "hard elsewhere":
        first = _at(data / rng.choice(places).format(topic=topic, id=UNIQUE) / rng.choice(NAMES), data, planted)
        first = first if not first.exists() else first.with_name(f"{rng.randrange(1 << 30)}.log")
    elif link == "soft to outside":
        first = outside / f"{rng.randrange(1 << 30)}"
    elif link != "none":
        first = path.with_name(f"{rng.randrange(1 << 30)}{rng.choice(('', '.log', '.index'))}")
    first.write_bytes(content)
    planted.paths.append(first)
    if first != path:
        if link.startswith("hard"):
            os.link(first, path)
        else:
            path.symlink_to(first)
        planted.paths.append(path)


def _at(path: Path, data: Path, planted: Planted) -> Path:
    """Create a file's directory, and remember the new directories."""
    missing = [one for one in (path.parent, *path.parent.parents) if one != data and not one.exists()]
    if missing:
        planted.made.append(missing[-1])
        path.parent.mkdir(parents=True)
    return path


def _content(rng: random.Random, data: Path, topic: str, key: bytes, value: bytes) -> tuple[str, bytes]:
    """Return a description, and bytes that contain the value."""
    junk = rng.randbytes(rng.choice((0, 1, 7, 61, 500, 5000)))
    form = rng.choice(("raw", "batch", "batch", "batch", "batch", "segment", "segment", "old", "half"))
    if form == "segment":
        segments = [path for path in data.glob(f"{topic}-*/*.log") if path.stat().st_size]
        if segments:
            return form, rng.choice(segments).read_bytes()
        form = "batch"
    if form == "raw":
        return form, junk + value + rng.randbytes(rng.randrange(50))
    if form == "old":
        magic, codec = rng.randrange(2), rng.randrange(4)
        records = [Record(0, 1, b"another", b"-"), Record(1, 1, key, value)]
        message = make_wrapper(magic, codec, records) if codec else make_message(magic, 1, key, value)
        return f"magic {magic}, codec {codec}", bytes(message)
    codec = rng.randrange(5)
    at = rng.choice(("key", "other key", "header"))
    record = {
        "key": Record(0, 1, key, value),
        "other key": Record(0, 1, b"another", value),
        "header": Record(0, 1, b"another", b"-", (Header("was", value),)),
    }[at]
    # Like it, so that a codec says of most of the value that it was there before.
    like = [value.replace(b"0", b"1"), value[: rng.randrange(len(value))] * 3, value.swapcase(), b"e" * 300]
    filler = [Record(one, 1, b"%d" % one, rng.choice(like)) for one in range(rng.randrange(6))]
    batch = bytes(build_batch([*filler, record._replace(offset=len(filler))], codec=codec))
    if form == "half":
        # Behind it bytes that are not a batch: what is whole counts all the same.
        return f"batch of codec {codec}, {at}, then junk", batch + rng.randbytes(30)
    if rng.random() < 0.5:
        return f"batch of codec {codec}, {at}", batch
    return f"batch of codec {codec}, {at}, behind {len(junk)} bytes", junk + batch
