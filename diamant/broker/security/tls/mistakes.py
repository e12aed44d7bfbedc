"""The error texts of failed handshakes: the likely mistake of the client or operator, and its remedy."""

from __future__ import annotations

import ssl

_HANDSHAKE = 0x16
"""The type of the TLS record that holds a ClientHello."""

_HTTP_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN")


def no_client_hello(received: bytes | memoryview) -> str | None:
    """The mistake if the first bytes of a connection are not TLS; None if they may start a ClientHello."""
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
    """The reason for a failed handshake, in one line; empty if the peer only closed the connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ""
    reason = getattr(error, "reason", None) or str(error)
    return f"the TLS handshake has failed: {_REASONS.get(reason, reason)}"
