"""Places that vanish although a broker's data stays: a container's own layer, and memory. No key is made there unasked.

A container whose root is an overlay loses what was written there when it is renewed, but not its volumes. Source: proc(5),
``/proc/self/mountinfo``. Roots of containers on other file systems (Docker's storage drivers btrfs and zfs) are not recognised.
"""

from __future__ import annotations

import os
import re

from diamant.storage.errors import StorageError

MOUNTINFO = "/proc/self/mountinfo"
IN_MEMORY = frozenset(["tmpfs", "ramfs"])


def mount_table() -> str:
    """Return the system's table of mounts; empty where there is none (not Linux). Blocks."""
    try:
        with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def check_lasting(path: str, directory: str, mounts: str) -> None:
    """Raise StorageError if a key that is yet to be made would be gone before the data directory is. Links are followed. Blocks.

    `path`: the key's file, beside which its secret is. `mounts`: as `mount_table` returns it.
    """
    if all(os.path.exists(file) for file in (path, f"{path}.secret")):
        return
    reason = _vanishes_with(path, mounts)
    if reason is not None and _vanishes_with(directory, mounts) is None:
        raise StorageError(
            f"{path} would vanish with {reason}, while the data in {directory} stays: without that key's secret digests "
            "cannot be compared, and an unfinished erasure cannot continue. Let diamant.certificate.key.file name a place that "
            "stays, in a container a volume (-v diamant-keys:/keys); diamant.certificate.key.ephemeral=true makes the "
            "key nevertheless"
        )


def _vanishes_with(path: str, mounts: str) -> str | None:
    """The reason why what is written there does not stay; None if it does, as far as can be told."""
    point, kind = _mount_of(os.path.realpath(path), mounts)
    if kind in IN_MEMORY:
        return f"this machine's memory ({point} is a {kind})"
    if point == "/" and "overlay" in kind:
        return f"the container (/ is an {kind})"
    return None


def _mount_of(path: str, mounts: str) -> tuple[str, str]:
    """The mount that a path without links is on: where it is and of which kind; of several at one place the last."""
    found = "", ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split(" ")[4])
        inside = point.rstrip("/") + "/"
        if (path == point or path.startswith(inside)) and len(point) >= len(found[0]):
            found = point, rest.split(" ")[0]
    return found
