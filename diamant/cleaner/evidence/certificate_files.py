"""Where certificates lie, and how the last one takes the place of its intent.

    <data directory>/<prefix><id>.<state>.json            a certificate
    <data directory>/<prefix><id>.<state>.json.pending    a signed one whose intent is there still

An intent must not outlive the certificate that says that nothing is left, and a crash must not forget an erasure. So the last
certificate is written as a pending one, durably, then the intent goes, then the certificate gets its name. A start that finds
a pending one gives it its name if the intent is gone; with the intent there the erasure goes on, and issues another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diamant.cleaner.evidence.intent import PREFIX, SUFFIX, remove_intent
from diamant.storage.env import Env

REDACTION_PREFIX = "diamant-redaction-"
"""Of redactions, whose certificates lie beside those of erasures."""

PENDING = ".pending"
_JSON = ".json"
_TEMPORARY = ".tmp"


def certificate_path(directory: str, erasure_id: str, state: str, prefix: str = PREFIX) -> str:
    """Return where a certificate lies."""
    return f"{directory}/{prefix}{erasure_id}.{state}{_JSON}"


def list_certificates(env: Env, directory: str) -> list[dict[str, Any]]:
    """Return `id`, `state` and `path` of all certificates. Blocks."""
    found = []
    for name in env.list_dir(directory):
        prefix = next((one for one in (PREFIX, REDACTION_PREFIX) if name.startswith(one)), None)
        if prefix is not None and name.endswith(_JSON):
            erasure_id, _, state = name[len(prefix) : -len(_JSON)].partition(".")
            found.append({"id": erasure_id, "state": state, "path": f"{directory}/{name}"})
    return found


def conclude(
    env: Env,
    directory: str,
    erasure_id: str,
    path: str,
    text: bytes,
    *,
    remove: Callable[[Env, str, str], None] | None = None,
) -> None:
    """Exchange the intent for the last certificate, durably. Blocks; OSError, after which it may be called again.

    `remove`: what removes an intent; None: that of an erasure.
    """
    env.write_atomically(path + PENDING, text)
    env.sync_dir(directory)
    (remove or remove_intent)(env, directory, erasure_id)
    env.rename(path + PENDING, path)
    env.sync_dir(directory)


def tidy(env: Env, directory: str, prefix: str = PREFIX) -> list[str]:
    """End what a crash has left of `conclude` and of writing files; return the paths of certificates that got their names.

    `prefix`: that of erasures, or of redactions. Blocks. At a start, before anything is gone on with.
    """
    named = []
    entries = env.list_dir(directory)
    for name in entries:
        if not name.startswith(prefix):
            continue
        path = f"{directory}/{name}"
        if name.endswith(_TEMPORARY):
            env.remove(path, missing_ok=True)
        elif name.endswith(PENDING):
            erasure_id = name[len(prefix) :].partition(".")[0]
            if f"{prefix}{erasure_id}{SUFFIX}" in entries:
                env.remove(path, missing_ok=True)
            else:
                env.rename(path, path.removesuffix(PENDING))
                named.append(path.removesuffix(PENDING))
    env.sync_dir(directory)
    return named
