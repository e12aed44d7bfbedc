"""Locations that may be lost while the data is kept: a container's own layer, and memory. By default, no key is created there.

A container whose root is an overlay loses its own layer when it is replaced, but keeps its volumes. Mounts are read from
``/proc/self/mountinfo`` (proc(5)). Container roots on other file systems (Docker's btrfs and zfs storage drivers) are not
recognised.
"""

from __future__ import annotations

import os
import re

from diamant.storage.errors import StorageError

MOUNTINFO = "/proc/self/mountinfo"
IN_MEMORY = frozenset(["tmpfs", "ramfs"])


def mount_table() -> str:
    """Return the system's mount table; an empty string if there is none (not Linux). Does blocking I/O."""
    try:
        with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def check_lasting(path: str, directory: str, mounts: str) -> None:
    """Raise StorageError if a new key could be lost while the data directory is kept. Existing keys are accepted.

    `path`: the file of the key, beside which its secret is stored. `mounts`: the result of `mount_table`. Follows links; does
    blocking I/O.
    """
    if all(os.path.exists(file) for file in (path, f"{path}.secret")):
        return
    reason = _vanishes_with(path, mounts)
    if reason is not None and _vanishes_with(directory, mounts) is None:
        raise StorageError(
            f"{path} would vanish with {reason}, while the data in {directory} stays. Without the key's secret, digests "
            "cannot be compared, and unfinished erasures cannot continue. Set diamant.certificate.key.file to a path in "
            "permanent storage, such as a container's volume (-v diamant-keys:/keys); or set "
            "diamant.certificate.key.ephemeral=true to create the key anyway"
        )


def _vanishes_with(path: str, mounts: str) -> str | None:
    """Describe what a file at `path` would vanish with; None if the mounts show no such risk."""
    point, kind = _mount_of(os.path.realpath(path), mounts)
    if kind in IN_MEMORY:
        return f"this machine's memory ({point} is a {kind})"
    if point == "/" and "overlay" in kind:
        return f"the container (/ is an {kind})"
    return None


def _mount_of(path: str, mounts: str) -> tuple[str, str]:
    """Return the mount point and file system type of a path without links; if a point has several mounts, the last counts."""
    found = "", ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split(" ")[4])
        inside = point.rstrip("/") + "/"
        if (path == point or path.startswith(inside)) and len(point) >= len(found[0]):
            found = point, rest.split(" ")[0]
    return found
