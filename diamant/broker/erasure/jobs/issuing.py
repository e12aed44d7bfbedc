"""Issues the certificates of jobs: signed, and on the disk before anybody is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.operations.calls.blocking import to_its_end
from diamant.cleaner.evidence.certificates.certificate import sign_certificate
from diamant.cleaner.evidence.certificates.files import certificate_path, conclude
from diamant.cleaner.evidence.certificates.signing_key import SigningKey


async def issue(
    table: JobTable[Any], fields: Mapping[str, Any], key: SigningKey, *, is_last: bool
) -> tuple[dict[str, Any], str]:
    """Return a certificate of these fields, signed, and its path. If it is the job's last one, the intent goes.

    What is on the disk is written to its end, even if the caller is cancelled. OSError.
    """
    files, job_id = table.files, fields["id"]
    path = certificate_path(files.directory, job_id, fields["state"], files.prefix)

    def signed_text() -> tuple[dict[str, Any], bytes]:
        signed = sign_certificate(fields, key)
        return signed, json.dumps(signed, indent=1, sort_keys=True).encode()

    async def end() -> None:
        await asyncio.to_thread(conclude, files.env, path, text, partial(files.remove, job_id))
        table.finish(job_id)

    signed, text = await asyncio.to_thread(signed_text)
    await to_its_end(end() if is_last else asyncio.to_thread(files.env.write_atomically, path, text))
    return signed, path
