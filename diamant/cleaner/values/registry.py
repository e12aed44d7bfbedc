"""Schemas from a registry with Confluent's REST API: Confluent's own, Karapace, Apicurio below `/apis/ccompat/v7`.

After a failed connection, a timeout, a redirect or an error response, the registry counts as down for the rest of the
operation, which would otherwise wait for it again and again. Redirects are refused, because they could transfer credentials and
trust to another server. Soft-deleted versions are found, as they are by the registry's clients.

Bounds: `TIMEOUT_S` for a schema with its references, `MAX_ANSWER_BYTES` for each response. Blocking; for worker threads only.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from diamant.cleaner.values.framing import GUID, ID, SchemaName
from diamant.cleaner.values.registered import RegisteredSchema, parse_registered
from diamant.cleaner.values.schemas import NoSchema, SchemaText
from diamant.storage.input_file import read_input

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 4 * 1024 * 1024
_MAX_SECRET_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """A registry's URL and credentials. Raises ValueError for an unsuitable URL."""

    url: str
    user_info: str | None = None
    """USER:PASSWORD for basic authentication."""
    token: str | None = None
    """Token for bearer authentication."""
    ca_file: str | None = None
    """PEM certificates to trust instead of the system's."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ValueError("expected a URL such as https://registry.example.com:8081, without user and password")

    def headers(self) -> dict[str, str]:
        """Return the headers of a request."""
        found = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self.user_info is not None:
            found["Authorization"] = f"Basic {base64.b64encode(self.user_info.encode()).decode()}"
        elif self.token is not None:
            found["Authorization"] = f"Bearer {self.token}"
        return found


def registry_address(url: str, user: str | None, token_file: str | None, ca_file: str | None) -> RegistryAddress:
    """Return the address that the options specify. `user`: NAME:PASSWORD-FILE. Raises ValueError, OSError."""
    if user is None:
        return RegistryAddress(url, None, None if token_file is None else _secret(token_file), ca_file)
    name, colon, file = user.partition(":")
    if not name or not colon or token_file is not None:
        raise ValueError("expected a user as NAME:PASSWORD-FILE, or a file with a token, not both")
    return RegistryAddress(url, f"{name}:{_secret(file)}", None, ca_file)


def _secret(path: str) -> str:
    found = read_input(path, _MAX_SECRET_BYTES).decode(errors="surrogateescape").strip("\r\n")
    if not found or not found.isprintable():
        raise ValueError(f"{path}: expected one line of text")
    return found


class _Down(Exception):
    """The registry counts as down; the message says why."""


_MEANINGS = {3: ", a redirect, which is refused"}


class SchemaRegistry:
    """The schemas of one registry, for one operation (`SchemaSource`)."""

    def __init__(self, address: RegistryAddress, timeout_s: float = TIMEOUT_S) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._tls: ssl.SSLContext | None = None
        self._down: str | None = None

    def find(self, name: SchemaName, topic: str, field: str) -> SchemaText | None:
        """Return the schema with an id or a GUID. Raises NoSchema."""
        del topic, field
        kind, own = name
        if kind not in (ID, GUID):
            return None
        if self._down is not None:
            raise self._no_schema(self._down)
        deadline = time.monotonic() + self._timeout_s
        try:
            found = self._registered(f"/schemas/{kind}s/{own}", deadline, (kind, str(own)))
            return found.with_references(
                lambda subject, version: self._registered(
                    f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true", deadline
                )
            )
        except (_Down, OSError, http.client.HTTPException) as error:
            self._down = f"{error}; it is not asked again"
            raise self._no_schema(self._down) from None

    def _no_schema(self, reason: str) -> NoSchema:
        return NoSchema(f"the schema registry {self._address.url}: {reason}")

    def _registered(self, path: str, deadline: float, own: tuple[str, str] | None = None) -> RegisteredSchema:
        """Request a schema. `own`: a field (`id` or `guid`), and the value it must have if the response contains it."""
        status, data = self._get(path, deadline)
        if status != HTTPStatus.OK:
            if status == HTTPStatus.NOT_FOUND:
                raise self._no_schema(f"it has no {path}")
            raise _Down(f"GET {path} was answered with status {status}{_MEANINGS.get(status // 100, '')}")
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            fields = None
        is_other = isinstance(fields, dict) and own is not None and str(fields.get(*own)).lower() != own[1]
        found = parse_registered(fields) if isinstance(fields, Mapping) and not is_other else None
        if found is None:
            raise self._no_schema(f"GET {path} was not answered with this schema")
        return found

    def _get(self, path: str, deadline: float) -> tuple[int, bytes]:
        address = self._address
        parts = urlsplit(address.url)
        left = deadline - time.monotonic()
        if left <= 0:
            raise _Down(f"it took more than {self._timeout_s:g} s")
        host, port = str(parts.hostname), parts.port
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            self._tls = self._tls or ssl.create_default_context(cafile=address.ca_file)
            connection = http.client.HTTPSConnection(host, port, timeout=left, context=self._tls)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=left)
        # The timeout of the connection restarts with every byte, so a timer limits the time of the whole request.
        watch = threading.Timer(left, _shut, [connection])
        watch.daemon = True
        watch.start()
        try:
            connection.request("GET", parts.path.rstrip("/") + path, headers=address.headers())
            with connection.getresponse() as answer:
                data = bytearray()
                while piece := answer.read1(_READ_BYTES):
                    data += piece
                    if len(data) > MAX_ANSWER_BYTES:
                        raise _Down(f"GET {path} was answered with more than {MAX_ANSWER_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise _Down(f"it took more than {self._timeout_s:g} s")
                return answer.status, bytes(data)
        finally:
            watch.cancel()
            connection.close()


def _shut(connection: http.client.HTTPConnection) -> None:
    """Shut down a connection, so that the thread that reads from it does not wait any longer."""
    if connection.sock is not None:
        try:
            connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
