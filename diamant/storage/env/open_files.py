"""Files without a name that are still on the disk because this process has them open for reading."""

from __future__ import annotations

import os

_DESCRIPTORS = "/proc/self/fd"
_REMOVED = " (deleted)"
"""The suffix that Linux adds to the name that such a file had."""


def removed_but_open(directory: str) -> list[str]:
    """Return the names, relative to a directory, that such files below it had last; ascending, each once.

    Links to directories in it are followed. Blocks for some 2 us for each descriptor of the process. Nothing where there is no
    /proc, as on macOS.
    """
    prefixes = {f"{os.path.realpath(directory)}/": ""}
    # Partitions that were moved elsewhere.
    links = [name for name in os.listdir(directory) if os.path.islink(f"{directory}/{name}")]
    prefixes |= {f"{os.path.realpath(f'{directory}/{link}')}/": f"{link}/" for link in links}
    try:
        descriptors = os.listdir(_DESCRIPTORS)
    except FileNotFoundError:
        return []
    found = set()
    for descriptor in descriptors:
        try:
            name = os.readlink(f"{_DESCRIPTORS}/{descriptor}")
        except OSError:
            continue  # That of the listing itself, or closed since.
        if name.endswith(_REMOVED):
            found |= {
                shown + name[len(prefix) : -len(_REMOVED)]
                for prefix, shown in prefixes.items()
                if name.startswith(prefix)
            }
    return sorted(found)
