"""The targets: each a function from a seed to the number of its inputs. AssertionError if a property fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.broker.security.sasl.fuzzing import fuzz as fuzz_sasl
from tests.fuzz.documents import fuzz as fuzz_documents
from tests.fuzz.files import fuzz as fuzz_files
from tests.fuzz.requests import Authenticated, Plaintext, Tls, fuzz

FRAMES = 10_000
DIRECTORIES = 50
DOCUMENTS = 5000


async def plaintext(seed: int) -> int:
    """Frames of all APIs."""
    return await fuzz(seed, FRAMES, Plaintext)


async def tls(seed: int) -> int:
    """Frames of all APIs in TLS records, some of which are damaged."""
    return await fuzz(seed, FRAMES, Tls)


async def authenticated(seed: int) -> int:
    """Frames of all APIs of clients that have authenticated by SASL."""
    return await fuzz(seed, FRAMES, Authenticated)


async def sasl(seed: int) -> int:
    """Frames before authentication."""
    await fuzz_sasl(FRAMES, seed)
    return FRAMES


async def files(seed: int) -> int:
    """Data directories with damaged files."""
    return await fuzz_files(seed, DIRECTORIES)


async def documents(seed: int) -> int:
    """Certificates, maps, schemas and conditions."""
    return await fuzz_documents(seed, DOCUMENTS)


TARGETS: dict[str, Callable[[int], Awaitable[int]]] = {
    "plaintext": plaintext,
    "sasl": sasl,
    "authenticated": authenticated,
    "tls": tls,
    "files": files,
    "documents": documents,
}
