"""Puts a log directory back to a copy that `directory_copy` has made.

The present files are moved to `trash`, for the caller to remove, and the copy's take their place: closed segments as hard
links, the rest as copies. A mark beside both names the copy until the caller removes it, once the directory is open. A start that
finds the mark does all of it again, so a killed process leaves the old state or the new one. A loss of power in the middle may
leave parts of both.
"""

from __future__ import annotations

from diamant.storage import names
from diamant.storage.env.env import Env


def restore_directory(env: Env, copy: str, path: str, trash: str, mark: str) -> None:
    """Replace what is in `path`, whose lock the caller holds, by `copy`. OSError: the next start tries again."""
    env.write_atomically(mark, copy.encode(), sync=False)
    env.make_dirs(trash)
    for name in env.list_dir(path):
        if name != names.LOCK:
            env.rename(f"{path}/{name}", f"{trash}/{name}")
    for name in env.list_dir(copy):
        source = f"{copy}/{name}"
        if env.is_dir(source):
            _restore_partition(env, source, f"{path}/{name}")
        elif name != names.CLEAN_SHUTDOWN:
            _copy(env, source, f"{path}/{name}")


def _restore_partition(env: Env, source: str, target: str) -> None:
    env.make_dirs(target)
    found = env.list_dir(source)
    closed = {name for name in found if name.endswith(names.LOG_SUFFIX)}
    closed.discard(max(closed, default=""))
    for name in found:
        if name in closed:
            try:
                env.link(f"{source}/{name}", f"{target}/{name}")
                continue
            except OSError:
                pass  # no hard links here
        _copy(env, f"{source}/{name}", f"{target}/{name}")


def _copy(env: Env, source: str, target: str) -> None:
    file = env.create_new(target)
    try:
        content = env.read_bytes(source)
        if content:
            file.append(content)
    finally:
        file.close()
