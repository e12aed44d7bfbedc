"""Restores a log directory from a copy made by `directory_copy`.

The current files are moved to `trash`, which the caller removes. The copy's closed segments are hard-linked in their place; other
files are copied. A mark beside both directories names the copy; the caller removes it once the directory is open. A start that
finds the mark repeats the restore, so a killed process leaves the old or the new state. A loss of power may leave parts of both.
"""

from __future__ import annotations

from diamant.storage import names
from diamant.storage.env.env import MAX_LOG_FILE, Env


def restore_directory(env: Env, copy: str, path: str, trash: str, mark: str) -> None:
    """Replace the contents of `path`, whose lock the caller holds, by `copy`. After OSError the next start retries."""
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
    copied = env.list_dir(source)
    closed = {name for name in copied if name.endswith(names.LOG_SUFFIX)}
    closed.discard(max(closed, default=""))
    for name in copied:
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
        content = env.read_bytes(source, MAX_LOG_FILE)
        if content:
            file.append(content)
    finally:
        file.close()
