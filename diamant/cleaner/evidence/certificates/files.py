"""The files of certificates, and how the final certificate of a job replaces the job's intent.

    <data directory>/<prefix><id>.<state>.json            a certificate
    <data directory>/<prefix><id>.<state>.json.pending    a signed certificate whose intent still exists

An intent must not outlive the certificate that says that nothing is left, and a crash must not lose an erasure. So the final
certificate is first written durably under its pending name. Then the intent is removed, and then the certificate is renamed. When
the broker starts, it renames a pending certificate whose intent is gone. If the intent still exists, the pending certificate is
removed, and the erasure continues and issues a new one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from diamant.cleaner.evidence.certificates.certificate import MAX_BYTES, CertificateError, parse_certificate
from diamant.json_types import JsonObject
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.given_names import is_certificate_name

MAX_DESCRIBED = 100
"""Maximum number of certificates that a list describes (the newest ones). Each of them is read, one after the other."""

_UNDESCRIBED: Mapping[str, Any] = {"issued_ms": None, "topics": None, "reference": None, "check": None}

GENUINE = "signed"
"""Value of `check` in a list for a certificate that is exactly as its broker signed it; other values say what is wrong."""

_KINDS = {names.ERASURE_PREFIX: "erasure", names.REDACTION_PREFIX: "redaction", names.PERSON_PREFIX: "person"}

Check = Callable[[Mapping[str, Any], str, str], str]
"""Takes a certificate, and the id and state in its file name. Returns why it is not what its broker signed; "" if it is."""


def certificate_path(directory: str, erasure_id: str, state: str, prefix: str = names.ERASURE_PREFIX) -> str:
    """Return the path of a certificate."""
    return f"{directory}/{prefix}{erasure_id}.{state}{names.CERTIFICATE_SUFFIX}"


def list_certificates(env: Env, directory: str) -> list[JsonObject]:
    """Return `id`, `kind` (`erasure`, `redaction` or `person`), `state` and `path` of all certificates. Does blocking I/O."""
    found: list[JsonObject] = []
    for name in env.list_dir(directory):
        if is_certificate_name(name) and not name.endswith(names.PENDING_SUFFIX):
            prefix = next(one for one in names.JOB_PREFIXES if name.startswith(one))
            job_id, _, state = name.removeprefix(prefix).removesuffix(names.CERTIFICATE_SUFFIX).partition(".")
            kind = _KINDS[prefix]
            found.append({"id": job_id, "kind": kind, "state": state, "path": f"{directory}/{name}"})
    return found


class CertificateList:
    """Describes the certificates in a directory and checks their signatures. Thread-safe.

    Each call reads the files, but parses only those that have changed. Memory: `MAX_DESCRIBED` descriptions, each of some 200
    bytes plus the topic names.
    """

    def __init__(self) -> None:
        self._known: Mapping[tuple[str, bytes], Mapping[str, Any]] = {}
        """Descriptions by path and SHA-256."""

    def describe(self, env: Env, directory: str, check: Check | None = None) -> list[JsonObject]:
        """Return the rows of `list_certificates` with descriptions, sorted by the time of the last write. Does blocking I/O.

        `written_ms` is that time. `issued_ms`, `topics`, `reference` and `check` describe the last `MAX_DESCRIBED` certificates;
        they are None for earlier ones. The row's `check` is `GENUINE`, or says what is wrong with the certificate or its file.
        Without the argument `check`, no signature is checked, and only files that cannot be read have a `check`.
        """
        found = []
        for one in list_certificates(env, directory):
            with suppress(FileNotFoundError):
                found.append({**one, "written_ms": env.mtime_ms(one["path"])})
        found.sort(key=lambda one: (one["written_ms"], one["path"]))
        before, known = self._known, {}
        for one in found:
            one |= _UNDESCRIBED
        for one in found[max(0, len(found) - MAX_DESCRIBED) :]:
            one["check"] = _UNREADABLE
            with suppress(OSError):
                text = env.read_bytes(one["path"], MAX_BYTES)
                file = one["path"], hashlib.sha256(text).digest()
                known[file] = before[file] if file in before else _described(text, one["id"], one["state"], check)
                one |= known[file]
        # Without `check`, no signature was checked, so these descriptions must not be used again.
        self._known = {} if check is None else known
        return found


_UNREADABLE = "it cannot be read as a certificate"


def _described(text: bytes, job_id: str, state: str, check: Check | None) -> Mapping[str, Any]:
    """Return the description of a certificate, including the result of its check."""
    try:
        fields = parse_certificate(text)
        request = fields["request"]
        topics = [str(one) for one in request["topics"]]
        issued_ms, reference = int(fields["clock"]["issued_ms"]), request.get("reference")
    except (CertificateError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return {**_UNDESCRIBED, "check": _UNREADABLE}
    told = None if check is None else check(fields, job_id, state) or GENUINE
    return {"issued_ms": issued_ms, "topics": topics, "reference": reference, "check": told}


def conclude(env: Env, path: str, text: bytes, remove_intent: Callable[[], None]) -> None:
    """Replace the intent with the final certificate, durably. Does blocking I/O. May be called again after an OSError."""
    env.write_atomically(path + names.PENDING_SUFFIX, text)
    directory, name = os.path.split(path)
    front = f"{name.partition('.')[0]}."
    for other in env.list_dir(directory):
        # An earlier attempt wrote this file, but could not remove the intent. The next start would rename the file.
        if other.startswith(front) and other.endswith(names.PENDING_SUFFIX) and other != name + names.PENDING_SUFFIX:
            env.remove(f"{directory}/{other}", missing_ok=True)
    env.sync_dir(directory)
    remove_intent()
    env.rename(path + names.PENDING_SUFFIX, path)
    env.sync_dir(directory)


def name_pending(env: Env, directory: str, erasure_id: str, prefix: str = names.ERASURE_PREFIX) -> str | None:
    """Complete an interrupted `conclude` whose intent is gone: rename the pending certificate, and return its path.

    Returns None if no certificate is pending. Only the code that ends the job may call this, because a certificate must stay
    pending while its intent exists. Does blocking I/O; raises OSError.
    """
    found = [
        name
        for name in env.list_dir(directory)
        if name.startswith(f"{prefix}{erasure_id}.") and name.endswith(names.PENDING_SUFFIX)
    ]
    named = None
    for name in found:
        named = f"{directory}/{name.removesuffix(names.PENDING_SUFFIX)}"
        env.rename(f"{directory}/{name}", named)
        env.sync_dir(directory)
    return named


def has_traces(env: Env, directory: str) -> bool:
    """Tell whether a data directory has certificates, intents or remains, which depend on the key and its secret.

    Does blocking I/O; raises OSError.
    """
    suffixes = (names.CERTIFICATE_SUFFIX, names.PENDING_SUFFIX, names.INTENT_SUFFIX, names.REMAINS_SUFFIX)
    return any(name.startswith(names.JOB_PREFIXES) and name.endswith(suffixes) for name in env.list_dir(directory))


def tidy(env: Env, directory: str, prefix: str = names.ERASURE_PREFIX) -> list[str]:
    """Clean up after a crash during `conclude` or while a file was written; return the paths of renamed certificates.

    Handles the kind of job whose files begin with `prefix`. Must be called when the broker starts, before any job is resumed.
    Does blocking I/O.
    """
    named = []
    entries = env.list_dir(directory)
    for name in entries:
        if not name.startswith(prefix):
            continue
        path = f"{directory}/{name}"
        if name.endswith(names.TEMPORARY_SUFFIX):
            env.remove(path, missing_ok=True)
        elif name.endswith(names.PENDING_SUFFIX):
            erasure_id = name[len(prefix) :].partition(".")[0]
            if f"{prefix}{erasure_id}{names.INTENT_SUFFIX}" in entries:
                env.remove(path, missing_ok=True)
            else:
                env.rename(path, path.removesuffix(names.PENDING_SUFFIX))
                named.append(path.removesuffix(names.PENDING_SUFFIX))
    env.sync_dir(directory)
    return named
