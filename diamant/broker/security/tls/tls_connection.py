"""One TLS connection. It is the protocol of asyncio's socket transport, and the transport of the protocol above it.

It replaces asyncio's TLS, which takes 350 KiB for a connection that has sent a ClientHello, stalls with a write buffer limit of
zero, and computes handshakes on the loop (CPython 3.11).

    socket → transport below → `buffer_updated` → OpenSSL → buffer of the protocol above
    `write` → OpenSSL → transport below → socket

The protocol above is created after the handshake, so it never sees a peer that was not admitted. All connections share one
read buffer. While the protocol has paused reading, a connection holds at most one socket read of encrypted bytes.

Messages about failed handshakes name the likely mistake of the client or operator, and how to fix it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, cast

from diamant.broker.security.identity.principal import ANONYMOUS
from diamant.broker.security.tls.listener_tls import AddressCounter, ListenerTls, NotAdmitted

logger = logging.getLogger(__name__)


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """The server's side of a connection. `make` creates the protocol above, a BufferedProtocol or a Protocol.

    `counter` is None if the number of connections per address is not limited.
    """

    def __init__(
        self, tls: ListenerTls, make: Callable[[], asyncio.BaseProtocol], counter: AddressCounter | None = None
    ) -> None:
        super().__init__()
        self._tls = tls
        self._make = make
        self._counter = counter
        self._loop = asyncio.get_running_loop()
        self._below: asyncio.Transport | None = None
        self._protocol: asyncio.BaseProtocol | None = None
        self._is_buffered = False
        self._ssl: ssl.SSLObject | None = None  # created with the first bytes
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._is_agreed = False
        self._error: OSError | None = None
        self._is_closing = False
        self._is_read_paused = False
        self.address = ""
        self._peer = ""
        self._principal = ANONYMOUS

    # The methods that asyncio's transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else ""
        self._peer = f"{peer[0]}:{peer[1]}" if peer else "unknown peer"
        if self._counter is not None and not self._counter.arrived(self.address, self._peer):
            self.give_up("")  # the counter has logged it
        elif not self._tls.handshakes.begin(self):
            self.give_up("too many TLS handshakes at the same time")

    def connection_lost(self, exc: Exception | None) -> None:
        # As in `client_connection`: this callback keeps asyncio's transport alive. Transports of other loops have no `__dict__`.
        getattr(self._below, "__dict__", {}).pop("_read_ready_cb", None)
        self._below = None
        self._is_closing = True
        self._tls.handshakes.end(self)
        if self._counter is not None:
            self._counter.left(self.address)
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._tls.scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closing:
            return
        received = self._tls.scratch[:nbytes]
        if self._ssl is None:
            mistake = no_client_hello(received)
            if mistake:
                self._tls.counts.failed += 1
                self.give_up(mistake)
                return
            self._ssl = self._tls.context_for(self._peer).wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(received)
        if self._protocol is not None:
            self._deliver()
        elif self._below is not None:
            self._below.pause_reading()  # the thread owns OpenSSL's state until the step is done
            self._tls.handshakes.step(self)

    def eof_received(self) -> bool:
        if isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol):
            return bool(self._protocol.eof_received())
        return False

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    # The handshake

    def advance(self) -> None:
        """Compute one step of the handshake. Runs in the handshake thread."""
        assert self._ssl is not None
        try:
            self._ssl.do_handshake()
            self._is_agreed = True
        except ssl.SSLWantReadError:
            pass
        except OSError as error:
            self._error = error

    def advanced(self) -> None:
        """Act on the result of `advance`."""
        below = self._below
        if below is None or self._is_closing:
            return
        self._send()
        if self._error is not None:
            self._tls.counts.failed += 1
            self.give_up(failed_handshake(self._error))
        elif self._is_agreed:
            self._begin()
        else:
            self._tls.handshakes.wait(self)
            below.resume_reading()

    def give_up(self, reason: str) -> None:
        """Send buffered bytes, such as an alert, and close the connection. Logs `reason` unless it is empty."""
        self._tls.handshakes.end(self)
        self._is_closing = True
        if reason:
            self._tls.log_refusal(self._peer, reason)
        if self._below is not None:
            self._below.close()

    def _begin(self) -> None:
        """Admit the peer and create the protocol above."""
        assert self._ssl is not None
        self._tls.handshakes.end(self)
        try:
            self._principal = self._tls.admit(self._ssl)
        except NotAdmitted as refusal:
            self.give_up(str(refusal))
            return
        self._tls.counts.successful += 1
        protocol = self._protocol = self._make()
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)
        protocol.connection_made(self)
        self._resume()

    # Bytes

    def _deliver(self) -> None:
        """Decrypt the received bytes until they are used up or the protocol above pauses."""
        try:
            if self._is_buffered:
                self._fill_buffers(cast(asyncio.BufferedProtocol, self._protocol))
            else:
                self._hand_over(cast(asyncio.Protocol, self._protocol))
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._tls.log_refusal(self._peer, f"TLS failed: {error.reason or error}")
            self._send()
            self.abort()
            return
        self._send()  # TLS has responses of its own: key updates, alerts

    def _fill_buffers(self, protocol: asyncio.BufferedProtocol) -> None:
        assert self._ssl is not None
        read, pending = self._ssl.read, self._ssl.pending
        while not (self._is_read_paused or self._is_closing):
            buffer = cast(memoryview, protocol.get_buffer(-1))
            size = len(buffer)
            filled, is_at_end = 0, False
            try:
                while filled < size:
                    count = read(size - filled, buffer[filled:] if filled else buffer)
                    if not count:
                        is_at_end = True
                        break
                    filled += cast(int, count)
                    if not (self._incoming.pending or pending()):
                        return  # avoids an SSLWantReadError, which costs more than a small request
            finally:
                if filled:
                    protocol.buffer_updated(filled)
            if is_at_end:
                self._end()
                return

    def _hand_over(self, protocol: asyncio.Protocol) -> None:
        assert self._ssl is not None
        while not (self._is_read_paused or self._is_closing):
            data = self._ssl.read(len(self._tls.scratch))
            if not data:
                self._end()
                return
            protocol.data_received(data)

    def _end(self) -> None:
        """Handle the peer's close_notify."""
        if not self.eof_received():
            self.close()

    def _send(self) -> None:
        if self._below is not None and self._outgoing.pending:
            self._below.write(self._outgoing.read())

    def _resume(self) -> None:
        if self._is_read_paused or self._is_closing:
            return
        self._deliver()
        if self._below is not None and not (self._is_read_paused or self._is_closing):
            self._below.resume_reading()

    # The transport methods that the protocol above calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt `data` and send it."""
        if self._is_closing or self._below is None or not data:
            return
        assert self._ssl is not None
        try:
            self._ssl.write(data)
        except ssl.SSLError as error:
            logger.debug("%s: %s", self._peer, error)
            self.abort()
            return
        self._below.write(self._outgoing.read())

    def close(self) -> None:
        """Send close_notify and close the connection once it is sent."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._ssl is not None and self._is_agreed:
            try:
                self._ssl.unwrap()
            except OSError:
                pass  # do not wait for the peer's close_notify
            self._send()
        if self._below is not None:
            self._below.close()

    def abort(self) -> None:
        self._is_closing = True
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._below is None or self._below.is_closing()

    def pause_reading(self) -> None:
        self._is_read_paused = True
        if self._below is not None:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        self._is_read_paused = False
        self._loop.call_soon(self._resume)

    def is_reading(self) -> bool:
        return not (self._is_read_paused or self.is_closing())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._below is not None:
            self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._below is None else self._below.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return False

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol above."""
        assert self._protocol is not None
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket's information, and `principal`, `ssl_object` and `sslcontext`."""
        if name == "principal":
            return self._principal
        if name == "ssl_object":
            return self._ssl
        if name == "sslcontext":
            return default if self._ssl is None else self._ssl.context
        return default if self._below is None else self._below.get_extra_info(name, default)


_HANDSHAKE = 0x16
"""The type of the TLS record that holds a ClientHello."""

_HTTP_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN")


def no_client_hello(received: bytes | memoryview) -> str | None:
    """Return the client's mistake if a connection's first bytes are not TLS; None if they may start a ClientHello."""
    if received[0] == _HANDSHAKE:
        return None
    start = bytes(received[:8])
    if start[:4] in _HTTP_METHODS:
        return (
            "an HTTP request without TLS on a port with TLS; is it for the HTTP port, or should it begin with https://?"
        )
    if len(start) == 8 and start[0] == 0 and int.from_bytes(start[4:6], "big") < 100:
        return "a Kafka request without TLS on a listener with TLS; the client's security.protocol should be SSL or SASL_SSL"
    return f"no TLS on a port with TLS: the first bytes are {start.hex(' ')}"


_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has sent no certificate, and ssl.client.auth=required; "
    "it needs ssl.keystore.location",
    "NO_SHARED_CIPHER": "the client has no cipher suite in common with the broker (ssl.cipher.suites)",
    "UNSUPPORTED_PROTOCOL": "the client has no version of TLS in common with the broker (ssl.enabled.protocols)",
    "VERSION_TOO_LOW": "the client has no version of TLS in common with the broker (ssl.enabled.protocols)",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the broker's certificate; its ssl.truststore.location "
    "needs the CA that signed it",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the client has no version of TLS in common with the broker (ssl.enabled.protocols)",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the broker's certificate; does its "
    "ssl.truststore.location have the CA that signed it, and is the host that it connects to among the certificate's names?",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the broker's certificate; is the host that it connects "
    "to among the certificate's names?",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client reports that the broker's certificate has expired",
}


def failed_handshake(error: OSError) -> str:
    """Return the reason for a failed handshake, in one line; empty if the peer only closed the connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ""
    reason = getattr(error, "reason", None) or str(error)
    return f"the TLS handshake has failed: {_REASONS.get(reason, reason)}"
