"""Values of earlier jobs that may still be somewhere on disk. Later scans look for them as well.

The values of a job in progress are in its intent. A job that ends before a scan has confirmed that they are gone leaves a file:

    <data directory>/<prefix><id>.remains     mode 0600, encrypted like an intent

While a job is in progress, other jobs look for its values even if a scan has found none of them, since a copy may have come back.
The file is removed by the first job, of any kind, whose last scan has looked for all values in the file and found none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from diamant.cleaner.erasure_state.intent import intent_files
from diamant.cleaner.evidence.certificates.private_files import AnyIntent, IntentFiles
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.search.findings import Unreadable
from diamant.cleaner.evidence.search.needles import MAX_NEEDLES, Needle
from diamant.cleaner.evidence.search.remains import Remains
from diamant.cleaner.redaction.intent import redaction_files
from diamant.storage import names
from diamant.storage.env.env import Env

FileT = TypeVar("FileT", bound=AnyIntent)

IsMeant: TypeAlias = Callable[[Remains], bool]
"""A function that returns whether a job must look for the remains of an earlier job."""

_UNKNOWN = (
    "it cannot be read, so it is not known which values an earlier request was looking for. Restore the key file and its "
    "secret; if they are lost, remove this file"
)
_TOO_MANY = (
    f"earlier requests that are in progress, or have not seen everything gone, look for more than {MAX_NEEDLES:,} values: "
    "wait until they have ended"
)


class KeptRemains:
    """The remains of all jobs of a data directory. Methods are blocking and raise OSError."""

    def __init__(self, env: Env, directory: str) -> None:
        self._intents: tuple[IntentFiles[Any], ...] = (
            intent_files(env, directory),
            redaction_files(env, directory),
        )
        self._left = {
            one.prefix: IntentFiles(env, directory, one.prefix, Remains.from_bytes, names.REMAINS_SUFFIX)
            for one in self._intents
        }
        """The files that ended jobs have left, by the file name prefix of the kind of job."""

    def inherited(
        self, jobs: Sequence[IsMeant], key: SigningKey
    ) -> list[tuple[Iterable[Needle], Sequence[Unreadable]]]:
        """Return, for each job, the values of earlier jobs that it must look for, and the files whose values are unknown."""
        needles: list[dict[bytes, Needle]] = [{} for _ in jobs]
        too_many: dict[int, Unreadable] = {}
        unknown: list[Unreadable] = []
        for file, one in self._all(key, unknown):
            for at, (is_meant, known) in enumerate(zip(jobs, needles, strict=True)):
                if at not in too_many and is_meant(one):
                    known.update({needle.digest: needle for needle in one.needles})
                    if len(known) > MAX_NEEDLES:
                        too_many[at] = Unreadable(None, None, os.path.basename(file), None, _TOO_MANY)
        return [
            (known.values(), [*unknown, *([too_many[at]] if at in too_many else ())])
            for at, known in enumerate(needles)
        ]

    def settle(self, prefix: str, own: Remains, report: ScanReport, key: SigningKey) -> None:
        """At the end of a job, keep its values in a file, unless its last scan (`report`) confirmed that they are gone. Remove
        files of earlier jobs whose values are confirmed gone, or are in the new file. `prefix`: the file name prefix of the kind.
        """
        is_kept = bool(own.needles) and not report.has_seen_gone(own.needles)
        if is_kept:
            self._left[prefix].write(own, key)
        for files in self._left.values():
            for one in _readable(files, key, []):
                is_included = is_kept and one.id != own.id and own.includes(one)
                if is_included or report.has_seen_gone(one.needles):
                    files.remove(one.id)

    def _all(self, key: SigningKey, unknown: list[Unreadable]) -> Iterator[tuple[str, Remains]]:
        for intents in self._intents:
            for intent in _readable(intents, key, unknown):
                yield intents.path(intent.id), intent.remains(key.secret)
        for files in self._left.values():
            for one in _readable(files, key, unknown):
                yield files.path(one.id), one


def _readable(files: IntentFiles[FileT], key: SigningKey, unknown: list[Unreadable]) -> Iterator[FileT]:
    """Yield the content of each file. If a file cannot be read, add it to `unknown`."""
    for job_id in files.ids():
        try:
            yield files.read(job_id, key)
        except FileNotFoundError:
            continue  # The job has just ended.
        except (OSError, ValueError) as error:
            reason = f"{_UNKNOWN}: {getattr(error, 'strerror', None) or error}"
            unknown.append(Unreadable(None, None, os.path.basename(files.path(job_id)), None, reason))
