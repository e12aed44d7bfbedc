"""Why a connection with TLS has failed, and what to do about it. Imported with the first failure."""

from __future__ import annotations

import ssl

_OTHER_HOST = (62, 64)
"""OpenSSL's codes X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_OWN_CA = "--ca, or ssl.truststore.location of --command-config"
_OWN_CERTIFICATE = "give it by ssl.keystore.location in the file of --command-config"


def tls_problem(error: OSError) -> tuple[str, str]:
    """Return why a connection with TLS has failed, with the next step, and the code of the error (`operation_errors.KINDS`)."""
    if isinstance(error, ssl.SSLCertVerificationError):
        found = error.verify_message
        if error.verify_code in _OTHER_HOST:
            return f"{found}: expected an address that the broker's certificate names", "bad-argument"
        return (
            f"certificate verify failed ({found}): expected the CA of the broker's certificate in {_OWN_CA}",
            "bad-argument",
        )
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)) or "WRONG_VERSION" in str(error):
        return "no TLS is spoken there, or the broker has broken off: expected a listener with TLS", "no-answer"
    reason = error.reason or "" if isinstance(error, ssl.SSLError) else ""
    if "ALERT" in reason and ("CERT" in reason or "UNKNOWN_CA" in reason):
        told = reason.rpartition("ALERT_")[2].lower().replace("_", " ")
        return f"the broker wants a client's certificate that it trusts ({told}): {_OWN_CERTIFICATE}", "bad-argument"
    return error.strerror or str(error), "no-answer"
