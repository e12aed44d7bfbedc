"""The default address of the broker that commands and clients ask."""

from __future__ import annotations

import os

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "DIAMANT_BOOTSTRAP_SERVERS"
USER_VARIABLE = "DIAMANT_USER"
"""`NAME:PASSWORD-FILE`, the login of commands."""
CA_VARIABLE = "DIAMANT_CA"
"""The PEM file with the CA that commands trust; they connect by TLS then."""
SYSTEM_CA = "system"
"""In place of that file: what the system trusts."""


def default_bootstrap() -> str:
    """Return the address for commands: the environment's, if it is set."""
    return os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
