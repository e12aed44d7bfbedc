"""The register of unfinished jobs on Kafka clusters. A job is a compaction or an erasure; it is registered on the machine that
runs the command.

    <state directory>/erasures/ID.json        mode 0600: the saved configurations; for an erasure, also its key and its reads
    <state directory>/erasures/ID.lock        locked while a process runs the job
    <state directory>/certificates/ID.json    certificates

A job's file is written before the cluster is changed. It is removed, with the key, once the configurations are put back and the
tombstones of an erasure are gone from all replicas. The state directory is `$DIAMANT_STATE_DIR`, else
`$XDG_STATE_HOME/diamant`, else `~/.local/state/diamant`.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from diamant.broker.clusters.outcome import ErasureOutcome
from diamant.broker.operation_errors import NotFound, NotPossible
from diamant.cleaner.evidence.certificates.private_files import write_private
from diamant.storage.env.env import RealEnv
from diamant.storage.env.user_directory import user_directory

if TYPE_CHECKING:
    from diamant.json_types import JsonObject

STATE_VARIABLE = "DIAMANT_STATE_DIR"
VERSION = 1


@dataclass(slots=True)
class LoweredValue:
    """A lowered configuration. `before`: the value set on the topic before, None if it was not set. `lowered`: the new value."""

    before: str | None
    lowered: str


@dataclass(slots=True)
class ClusterWork:
    """A job: a compaction or an erasure on a cluster, with its progress."""

    id: str
    verb: str
    """`compact` or `erase`."""
    cluster_id: str
    bootstrap: str
    topics: list[str]
    began_ms: int
    changes: dict[str, dict[str, LoweredValue]] = field(default_factory=dict)
    """The configurations that have not been put back yet, by topic and name."""
    key: bytes | None = None
    outcome: ErasureOutcome | None = None

    @property
    def is_open(self) -> bool:
        """False if all that is left to do is to remove tombstones after their horizon."""
        return bool(self.changes) or self.outcome is None or self.outcome.is_open

    def to_fields(self) -> JsonObject:
        """Return the JSON object that `from_fields` reads."""
        changes = {
            topic: {name: {"before": one.before, "lowered": one.lowered} for name, one in own.items()}
            for topic, own in self.changes.items()
        }
        return {
            "version": VERSION,
            "id": self.id,
            "verb": self.verb,
            "cluster_id": self.cluster_id,
            "bootstrap": self.bootstrap,
            "topics": self.topics,
            "began_ms": self.began_ms,
            "changes": changes,
            "key": None if self.key is None else base64.b64encode(self.key).decode(),
            "outcome": None if self.outcome is None else self.outcome.to_fields(),
        }

    @classmethod
    def from_fields(cls, found: JsonObject) -> ClusterWork:
        """Undo `to_fields`. Raises KeyError, TypeError, ValueError or AttributeError for any other input."""
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']!r}, expected {VERSION}")
        changes = {
            topic: {name: LoweredValue(one["before"], one["lowered"]) for name, one in own.items()}
            for topic, own in found["changes"].items()
        }
        key, outcome = found["key"], found["outcome"]
        return cls(
            found["id"],
            found["verb"],
            found["cluster_id"],
            found["bootstrap"],
            list(found["topics"]),
            found["began_ms"],
            changes,
            None if key is None else base64.b64decode(key),
            None if outcome is None else ErasureOutcome.from_fields(outcome),
        )


def state_directory() -> Path:
    """Return the state directory, which need not exist. Raises NotPossible if there is no home directory to put it in."""
    if given := os.environ.get(STATE_VARIABLE):
        return Path(given)
    base = user_directory("XDG_STATE_HOME", ".local/state")
    if base is None:
        raise NotPossible(f"there is no home directory for the register of erasures: set ${STATE_VARIABLE}")
    return Path(base) / "diamant"


class Register:
    """The register in one state directory."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = state_directory() if directory is None else directory
        self._works = self.directory / "erasures"
        self._encoded: tuple[ErasureOutcome, str] | None = None
        """The last outcome and its JSON. Every save of the job writes it, and encoding ten thousand replicas takes a second."""

    def new_id(self) -> str:
        """Return an unused id."""
        return secrets.token_hex(8)

    def listed(self) -> tuple[list[ClusterWork], list[str]]:
        """Return all jobs, oldest first, and a sentence about each unreadable file."""
        works, problems = [], []
        for path in sorted(self._works.glob("*.json")):
            try:
                works.append(self._load(path))
            except NotPossible as error:
                problems.append(str(error))
        return sorted(works, key=lambda one: (one.began_ms, one.id)), problems

    def all(self) -> list[ClusterWork]:
        """Return all jobs, oldest first. Raises NotPossible if a file is unreadable, as its job may have lowered some values."""
        works, problems = self.listed()
        if problems:
            raise NotPossible("; ".join(problems))
        return works

    def get(self, work_id: str) -> ClusterWork:
        """Return a job. Raises NotFound, or NotPossible if its file is unreadable."""
        path = self._path(work_id)
        if not work_id.isalnum() or not path.exists():
            raise NotFound(f"{self._works} has no erasure {work_id!r}: expected one of {self._ids()}")
        return self._load(path)

    def save(self, work: ClusterWork) -> None:
        """Save a job to disk, readable only by this user. Raises OSError."""
        rest = json.dumps(replace(work, outcome=None).to_fields() | {"outcome": "-"})
        self._write(self._path(work.id), rest.removesuffix('"-"}') + self._outcome_text(work.outcome) + "}")

    def _outcome_text(self, outcome: ErasureOutcome | None) -> str:
        if outcome is None:
            return "null"
        if self._encoded is None or self._encoded[0] is not outcome:
            self._encoded = outcome, json.dumps(outcome.to_fields())
        return self._encoded[1]

    def remove(self, work: ClusterWork) -> None:
        """Remove a job from the register."""
        self._path(work.id).unlink(missing_ok=True)

    @contextmanager
    def working(self, work: ClusterWork) -> Iterator[None]:
        """Lock a job for this process. Raises NotPossible if another process has locked it."""
        self._works.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._works / f"{work.id}.lock"
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise NotPossible(f"another process is running {work.verb} {work.id}: wait until it ends") from None
            try:
                yield
            finally:
                if not self._path(work.id).exists():
                    path.unlink(missing_ok=True)
        finally:
            os.close(file)

    def is_in_progress(self, work: ClusterWork) -> bool:
        """Return True if a process is running the job."""
        with suppress(OSError):
            file = os.open(self._works / f"{work.id}.lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
            finally:
                os.close(file)
        return False

    def keep_certificate(self, certificate: JsonObject, work_id: str) -> str:
        """Save a certificate and return its path."""
        path = self.directory / "certificates" / f"{work_id}.json"
        self._write(path, json.dumps(certificate, indent=1, sort_keys=True))
        return str(path)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(RealEnv(), str(path), text.encode())

    def _path(self, work_id: str) -> Path:
        return self._works / f"{work_id}.json"

    def _ids(self) -> str:
        return ", ".join(sorted(path.stem for path in self._works.glob("*.json"))) or "none"

    def _load(self, path: Path) -> ClusterWork:
        try:
            return ClusterWork.from_fields(json.loads(path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotPossible(
                f"{path} is damaged or has another version ({error}): check by hand whether configurations of its topics are "
                "still lowered, then move the file away"
            ) from None
