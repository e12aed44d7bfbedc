"""Lists the certificates of a broker, its unfinished erasures and redactions, and its public key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from diamant.broker.erasure.certification.certificates import Certificates
from diamant.broker.erasure.certification.erasure_requests import CertificatesRequest
from diamant.broker.erasure.pending.cancel import AnyQueue
from diamant.broker.errors import NotPossible
from diamant.progress import Progress


async def certificates(
    kept: Certificates, queues: Callable[[], Iterable[AnyQueue]], _request: CertificatesRequest, _progress: Progress
) -> Mapping[str, Any]:
    """Return all of them; see `Broker.certificates`."""
    public_key = problem = None
    try:
        public_key = await kept.public_key()
    except NotPossible as error:
        problem = str(error)
    return {
        "certificates": await kept.list_all(),
        "unfinished": [one for queue in queues() for one in await queue.unfinished_on_disk()],
        "public_key": public_key,
        "key_problem": problem,
    }
