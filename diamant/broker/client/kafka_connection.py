"""A connection to any Kafka broker: frames, correlation ids, and the versions common to both sides (ApiVersions, KIP-35).

    with KafkaConnection("127.0.0.1", 9092, timeout_s=10) as connection:
        answer = connection.ask(METADATA, {"topics": None})

Requests and responses are dicts with the fields in `protocol/wire/schemas.py`. The connection is synchronous and belongs to one
thread; with `send` and `arriving`, several requests can be in flight. A response has at most `MAX_ANSWER_BYTES`.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from diamant.protocol.errors import ErrorCode, ProtocolError
from diamant.protocol.primitives import encode_string
from diamant.protocol.wire.apis import (
    API_NAMES,
    API_VERSIONS,
    SERVED,
    ApiRange,
    request_header_version,
    response_header_version,
)
from diamant.protocol.wire.message_fields import decode_response_fields
from diamant.protocol.wire.schemas import encode_request_fields

if TYPE_CHECKING:
    import ssl

    from diamant.broker.client.login import Login

Fields: TypeAlias = Mapping[str, Any]

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""More than any expected response. A fetch requests a few MiB, but its response has at least one whole batch, however large."""
GATHERED_BYTES = 256 * 1024
"""Roughly the number of bytes that a broker sends before it waits for an acknowledgement."""
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
CLIENT_ID = "diamant-cli"


class ConnectionFailed(Exception):
    """No broker answers at the address, it does not speak Kafka's protocol, or the connection broke. The message has the address.

    `code` is one of `operation_errors.KINDS`: `unauthorized` if the broker refused the login.
    """

    def __init__(self, text: str, code: str = "no-answer") -> None:
        super().__init__(text)
        self.code = code


class KafkaConnection:
    """A connection, opened by the constructor. Do not use it after a request has raised ConnectionFailed."""

    def __init__(
        self, host: str, port: int, *, timeout_s: float, login: Login | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = f"{host}:{port}"
        self._tls = tls
        self._mechanism: str | None = None
        if not self._open(host, port, timeout_s, login):
            self._open(host, port, timeout_s, login)

    def _open(self, host: str, port: int, timeout_s: float, login: Login | None) -> bool:
        """Connect and log in. Return False, with the connection closed, if the broker does not offer the mechanism."""
        self._sent_id = self._received_id = 0
        self._ranges: dict[int, ApiRange] = {}
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
            if self._tls is not None:
                self._secure(self._tls, host)
        except OSError as error:
            raise self._failed(error) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._gathered = 1
        # With TLS, the kernel cannot count a response's bytes: it sees only encrypted records.
        self._can_gather = self._tls is None and sys.platform == "linux"
        try:
            answer = self._ask(API_VERSIONS, 0, {}, timeout_s)
            self._ranges = {
                api_key["api_key"]: ApiRange(api_key["min_version"], api_key["max_version"])
                for api_key in answer["api_keys"]
            }
            return login is None or self._log_in(login)
        except ConnectionFailed:
            self.close()
            raise

    def _secure(self, tls: ssl.SSLContext, host: str) -> None:
        plain = self._socket
        try:
            self._socket = tls.wrap_socket(plain, server_hostname=host)
        except OSError:
            plain.close()
            raise

    def _log_in(self, login: Login) -> bool:
        """Authenticate. If the broker does not offer the mechanism, choose another, close the connection and return False."""
        from diamant.broker.client.login import PREFERRED, LoginFailed, best_of, log_in

        mechanism = self._mechanism or login.mechanism or PREFERRED[0]
        answer = self.ask(SASL_HANDSHAKE, {"mechanism": mechanism}, most=1)
        try:
            if answer["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
                if login.mechanism is not None:
                    raise LoginFailed(f"the broker offers {', '.join(answer['mechanisms'])}, not {login.mechanism}")
                self._mechanism = best_of(answer["mechanisms"])
                self.close()
                return False
            if answer["error_code"]:
                raise LoginFailed(f"the broker requires no login here ({ErrorCode(answer['error_code']).name})")
            log_in(mechanism, login, self._send_token)
        except LoginFailed as error:
            who = f"user {login.user!r}" if login.user else "the token"
            raise ConnectionFailed(f"{self.address}: {who}: {error}", "unauthorized") from None
        return True

    def _send_token(self, token: bytes) -> bytes:
        from diamant.broker.client.login import LoginFailed

        answer = self.ask(SASL_AUTHENTICATE, {"auth_bytes": token})
        if answer["error_code"]:
            raise LoginFailed(answer["error_message"] or ErrorCode(answer["error_code"]).name)
        return bytes(answer["auth_bytes"])

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @property
    def is_closed(self) -> bool:
        """True once the connection is closed, even by an error or an interruption during a request."""
        return self._socket.fileno() < 0

    def __enter__(self) -> KafkaConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def offers(self, api_key: int) -> bool:
        """Return whether the broker has this API."""
        return api_key in self._ranges

    def version(self, api_key: int, most: int | None = None) -> int:
        """Return the highest version, up to `most`, that both sides support. Raises ConnectionFailed if there is none."""
        ours, theirs = SERVED[api_key], self._ranges.get(api_key)
        highest = ours.max if most is None else min(most, ours.max)
        if theirs is None or min(highest, theirs.max) < max(ours.min, theirs.min):
            raise ConnectionFailed(
                f"{self.address} supports no version of {API_NAMES[api_key]} from {ours.min} to {highest}"
            )
        return min(highest, theirs.max)

    def ask(self, api_key: int, fields: Fields, *, most: int | None = None, timeout_s: float | None = None) -> Fields:
        """Send a request in the highest version up to `most`, and return the fields of its response.

        `timeout_s`: how long to wait while the broker sends nothing. None: the timeout of the previous request.
        """
        return self._ask(api_key, self.version(api_key, most), fields, timeout_s)

    def send(self, api_key: int, version: int, fields: Fields) -> None:
        """Send a request without waiting. Its response, read with `arriving`, follows the responses to earlier requests."""
        self._sent_id += 1
        header = struct.pack(">hhi", api_key, version, self._sent_id) + encode_string(CLIENT_ID)
        if request_header_version(api_key, version) == 2:
            header += b"\0"
        request = header + encode_request_fields(api_key, version, fields)
        try:
            self._socket.sendall(struct.pack(">i", len(request)) + request)
        except TimeoutError:
            raise self._silent(api_key) from None
        except OSError as error:
            raise self._failed(error) from None

    def arriving(
        self, api_key: int, version: int, memory: memoryview, piece_bytes: int
    ) -> Iterator[tuple[memoryview, bool]]:
        """Receive the next response. Yields (the body received so far, whether it is complete) after every `piece_bytes` or more.

        The body has no header. It is received into `memory` if it fits, else into a new buffer. A caller that stops before the
        body is complete must close the connection.
        """
        try:
            head = memoryview(bytearray(4))
            self._receive(head, 0, 4)
            (size,) = struct.unpack(">i", head)
            if not 4 <= size <= MAX_ANSWER_BYTES:
                raise ConnectionFailed(f"{self.address} does not speak Kafka's protocol, or requires TLS")
            answer = memory[:size] if size <= len(memory) else memoryview(bytearray(size))
            at = self._receive(answer, 0, min(piece_bytes, size))
            self._received_id += 1
            (correlation_id,) = struct.unpack_from(">i", answer)
            if correlation_id != self._received_id:
                raise ConnectionFailed(f"{self.address} answered request {correlation_id}, not {self._received_id}")
            begin = 4 + response_header_version(api_key, version)
            while at < size:
                yield answer[begin:at], False
                at = self._receive(answer, at, min(at + piece_bytes, size))
            yield answer[begin:], True
        except TimeoutError:
            raise self._silent(api_key) from None
        except OSError as error:
            raise self._failed(error) from None

    def _ask(self, api_key: int, version: int, fields: Fields, timeout_s: float | None) -> Fields:
        if timeout_s is not None:
            self._socket.settimeout(timeout_s)
        try:
            self.send(api_key, version, fields)
            ((answer, _),) = self.arriving(api_key, version, memoryview(b""), MAX_ANSWER_BYTES)
        except BaseException:
            # The response may still arrive. The next request must not mistake it for its own.
            self.close()
            raise
        try:
            return decode_response_fields(api_key, version, bytes(answer))
        except ProtocolError as error:
            raise ConnectionFailed(f"{self.address}: {error}") from None

    def _failed(self, error: OSError) -> ConnectionFailed:
        if self._tls is None:
            return ConnectionFailed(f"{self.address}: {error.strerror or error}")
        from diamant.broker.client.tls_problem import tls_problem

        problem, code = tls_problem(error)
        return ConnectionFailed(f"{self.address}: {problem}", code)

    def _silent(self, api_key: int) -> ConnectionFailed:
        return ConnectionFailed(f"{self.address} does not answer {API_NAMES[api_key]} in time", "timed-out")

    def _receive(self, target: memoryview, at: int, end: int) -> int:
        """Receive into `target` from position `at` on, at least up to `end`. Returns the position after the received bytes."""
        while at < end:
            if self._can_gather:
                self._gather(end - at)
            size = self._socket.recv_into(target[at:])
            if not size:
                raise ConnectionFailed(
                    f"{self.address} closed the connection without a response: it may require a login, or TLS"
                )
            at += size
        return at

    def _gather(self, size: int) -> None:
        """Let the kernel collect up to `size` bytes before it wakes this thread, so that fewer reads are needed.

        The kernel also acknowledges the bytes before this thread reads them, so that the broker keeps sending.
        """
        least = min(size, GATHERED_BYTES) if size >= GATHERED_BYTES // 4 else 1
        if least != self._gathered:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            self._gathered = least
