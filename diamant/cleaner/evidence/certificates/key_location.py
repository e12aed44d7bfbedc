"""Places that do not last as long as the data: a container's own layer, and memory. No key is made there by default.

A container whose root is an overlay loses its own layer when it is replaced, but keeps its volumes. Source: proc(5),
``/proc/self/mountinfo``. Container roots on other file systems (Docker's storage drivers btrfs and zfs) are not recognised.
"""

from __future__ import annotations

import os
import re

from diamant.storage.errors import StorageError

MOUNTINFO = "/proc/self/mountinfo"
IN_MEMORY = frozenset(["tmpfs", "ramfs"])


def mount_table() -> str:
    """Return the system's table of mounts; empty if there is none (not Linux). Blocking."""
    try:
        with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def check_lasting(path: str, directory: str, mounts: str) -> None:
    """Raise StorageError if a new key would be lost before the data directory is. Follows links. Blocking.

    `path`: the key's file; its secret is beside it. `mounts`: as `mount_table` returns it.
    """
    if all(os.path.exists(file) for file in (path, f"{path}.secret")):
        return
    reason = _vanishes_with(path, mounts)
    if reason is not None and _vanishes_with(directory, mounts) is None:
        raise StorageError(
            f"{path} would vanish with {reason}, while the data in {directory} stays. Without the key's secret, digests "
            "cannot be compared, and unfinished erasures cannot continue. Set diamant.certificate.key.file to a place that "
            "lasts, such as a container's volume (-v diamant-keys:/keys); or set diamant.certificate.key.ephemeral=true to make "
            "the key anyway"
        )


def _vanishes_with(path: str, mounts: str) -> str | None:
    """Return why a file at `path` would not last; None if it would, as far as the mounts show."""
    point, kind = _mount_of(os.path.realpath(path), mounts)
    if kind in IN_MEMORY:
        return f"this machine's memory ({point} is a {kind})"
    if point == "/" and "overlay" in kind:
        return f"the container (/ is an {kind})"
    return None


def _mount_of(path: str, mounts: str) -> tuple[str, str]:
    """Return the mount point and type of a path without links; the last mount if a point has several."""
    found = "", ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split(" ")[4])
        inside = point.rstrip("/") + "/"
        if (path == point or path.startswith(inside)) and len(point) >= len(found[0]):
            found = point, rest.split(" ")[0]
    return found
