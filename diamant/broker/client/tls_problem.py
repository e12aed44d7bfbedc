"""Explanations of why a TLS connection has failed, and what to do about it. Imported only after a failure."""

from __future__ import annotations

import ssl

_OTHER_HOST = (62, 64)
"""OpenSSL's codes X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_OWN_CA = "--ca, or ssl.truststore.location of --command-config"
_OWN_CERTIFICATE = "set ssl.keystore.location in the file of --command-config"


def tls_problem(error: OSError) -> tuple[str, str]:
    """Return a message that says why a TLS connection has failed and what to do, and an error code (`operation_errors.KINDS`)."""
    if isinstance(error, ssl.SSLCertVerificationError):
        found = error.verify_message
        if error.verify_code in _OTHER_HOST:
            return f"{found}: expected one of the addresses in the broker's certificate", "bad-argument"
        return (
            f"certificate verify failed ({found}): expected the CA of the broker's certificate in {_OWN_CA}",
            "bad-argument",
        )
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)) or "WRONG_VERSION" in str(error):
        return "the listener does not use TLS, or the broker hung up: expected a listener with TLS", "no-answer"
    reason = error.reason or "" if isinstance(error, ssl.SSLError) else ""
    if "ALERT" in reason and ("CERT" in reason or "UNKNOWN_CA" in reason):
        told = reason.rpartition("ALERT_")[2].lower().replace("_", " ")
        return f"the broker requires a client certificate that it trusts ({told}): {_OWN_CERTIFICATE}", "bad-argument"
    return error.strerror or str(error), "no-answer"
