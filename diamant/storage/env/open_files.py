"""Removed files that still occupy the disk because this process has them open."""

from __future__ import annotations

import os

_DESCRIPTORS = "/proc/self/fd"
_REMOVED = " (deleted)"
"""Suffix that Linux appends to the last name of a removed file."""


def removed_but_open(directory: str) -> list[str]:
    """Return the last names of such files below a directory, relative to it; ascending, each once.

    Follows links to directories. Blocks for about 2 us per descriptor of the process. Empty on systems without /proc, such as
    macOS.
    """
    prefixes = {f"{os.path.realpath(directory)}/": ""}
    # Partition directories moved elsewhere.
    links = [name for name in os.listdir(directory) if os.path.islink(f"{directory}/{name}")]
    prefixes |= {f"{os.path.realpath(f'{directory}/{link}')}/": f"{link}/" for link in links}
    try:
        descriptors = os.listdir(_DESCRIPTORS)
    except FileNotFoundError:
        return []
    paths = set()
    for descriptor in descriptors:
        try:
            name = os.readlink(f"{_DESCRIPTORS}/{descriptor}")
        except OSError:
            continue  # The descriptor of the listing itself, or one closed since.
        if name.endswith(_REMOVED):
            paths |= {
                shown + name[len(prefix) : -len(_REMOVED)]
                for prefix, shown in prefixes.items()
                if name.startswith(prefix)
            }
    return sorted(paths)
