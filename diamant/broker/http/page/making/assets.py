"""The page's static files, which are part of the package: styles, scripts, and the libraries in `static/vendored.json`.

A file's address contains a digest of its content, so a browser can cache the file forever; after an upgrade the address differs.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

from aiohttp import web

from diamant.broker.http.serving.route import Call
from diamant.broker.operation_errors import NotFound

TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
PREFIX = "/static"


@cache
def asset(name: str) -> tuple[bytes, str]:
    """Return the bytes of a file and their digest. Raises NotFound."""
    found = next(
        (one for one in files("diamant.broker.http.page").joinpath("static").iterdir() if one.name == name), None
    )
    if found is None or name.rpartition(".")[2] not in TYPES:
        raise NotFound(f"the page has no file {name[:100]!r}")
    data = found.read_bytes()
    return data, sha256(data).hexdigest()[:12]


def asset_href(name: str) -> str:
    """Return the address of a file."""
    return f"{PREFIX}/{asset(name)[1]}/{name}"


async def serve(call: Call) -> web.Response:
    """Return a file. If the digest is that of another version, return the current file, with a header that forbids caching."""
    name = call.path["name"]
    data, digest = asset(name)
    kept = "public, max-age=31536000, immutable" if call.path["digest"] == digest else "no-store"
    headers = {"Cache-Control": kept, "X-Content-Type-Options": "nosniff"}
    return web.Response(body=data, content_type=TYPES[name.rpartition(".")[2]], charset="utf-8", headers=headers)
