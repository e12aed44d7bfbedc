"""Rules for all paths below `/v1`: allowed callers, known parameters and fields, JSON bodies, and errors.

Any web page can make a browser on this machine send requests here. So the Host header must be a name of this broker (DNS
rebinding sends the page's own name), a body must be declared as JSON (a form cannot do that), and no header allows other origins
to read a response.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Container, Iterable

from aiohttp import web

from diamant.broker.operation_errors import KINDS
from diamant.broker.operations.calls.parameters import Param
from diamant.json_types import JsonObject
from diamant.storage.strict_json import parse_strict

JSON_TYPE = "application/json"
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


_CODES = {kind.status: code for code, kind in reversed(KINDS.items())} | {415: "bad-argument"}


class JsonError(Exception):
    """An error that becomes a response with an HTTP status, the error code for that status, and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = _CODES[status]


def check_host(request: web.BaseRequest, own_names: Container[str]) -> None:
    """Refuse a request whose Host is neither loopback, nor the address at which it arrived, nor in `own_names`."""
    host = host_name(request.headers.get("Host", ""))
    if host in _LOOPBACK_NAMES or host in own_names:
        return
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise JsonError(
            403, f"Host {host!r} is not this broker: use its address, localhost or an advertised name"
        ) from None
    arrived_at = request.transport.get_extra_info("sockname") if request.transport is not None else None
    if not address.is_loopback and (arrived_at is None or host != arrived_at[0].removeprefix("::ffff:")):
        raise JsonError(403, f"Host {host!r} is not the address that this request arrived at")


def host_name(host: str) -> str:
    """Return the Host header in lower case, without its port and the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def check_type(request: web.BaseRequest) -> None:
    """Refuse a request not declared as JSON, even a POST without a body."""
    if request.content_type != JSON_TYPE:
        raise JsonError(415, f"Content-Type is {request.content_type}, expected {JSON_TYPE}")


async def read_object(request: web.BaseRequest, *, may_be_empty: bool, most: int) -> JsonObject:
    """Return the JSON object in a body of at most `most` bytes. If `may_be_empty`, an empty body counts as an empty object."""
    if request.content_length is not None and request.content_length > most:
        raise JsonError(413, f"the body has {request.content_length} bytes, expected at most {most}")
    body = bytearray()
    try:
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > most:
                raise JsonError(413, f"the body has more than {most} bytes")
    except (web.RequestPayloadError, ConnectionError) as error:
        raise JsonError(400, f"the body ends early: {error}") from None
    if may_be_empty and not body.strip():
        return {}
    try:
        found = parse_strict(body)
    except (ValueError, RecursionError) as error:
        raise JsonError(400, f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise JsonError(400, f"the body is not a JSON object but {type(found).__name__}")
    return found


def read_query(request: web.BaseRequest, known: Iterable[Param]) -> JsonObject:
    """Return the validated values of a query, with defaults. Raises JsonError."""
    params = {param.name: param for param in known}
    unknown = [name for name in request.query if name not in params]
    if unknown:
        raise JsonError(400, f"unknown parameters in the query: {_names(unknown)}; expected: {_names(params)}")
    found = {}
    for name, param in params.items():
        if name in request.query:
            found[name] = param.parse_texts(request.query.getall(name))
        elif param.is_required:
            raise JsonError(400, f"the query has no {name}: {param.doc}")
        else:
            found[name] = param.default
    return found


async def read_fields(request: web.BaseRequest, known: Iterable[Param], most: int) -> JsonObject:
    """Return the validated fields of a body, with defaults. Raises JsonError."""
    if request.method not in ("POST", "PUT"):
        return {}
    params = {param.name: param for param in known}
    body = await read_object(request, may_be_empty=not any(one.is_required for one in params.values()), most=most)
    unknown = [name for name in body if name not in params]
    if unknown:
        raise JsonError(400, f"unknown fields in the body: {_names(unknown)}; expected: {_names(params)}")
    found = {}
    for name, param in params.items():
        if body.get(name) is not None:
            found[name] = param.parse(body[name])
        elif param.is_required:
            raise JsonError(400, f"the body has no {name}: {param.doc}")
        else:
            found[name] = param.default
    return found


def _names(names: Iterable[str]) -> str:
    return ", ".join(name[:40] for name in list(names)[:20]) or "none"
