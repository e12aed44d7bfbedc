"""The default address of the broker for commands and clients."""

from __future__ import annotations

import os

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "DIAMANT_BOOTSTRAP_SERVERS"
USER_VARIABLE = "DIAMANT_USER"
"""The variable with the login for commands, as `NAME:PASSWORD-FILE`."""
CA_VARIABLE = "DIAMANT_CA"
"""The variable with the PEM file of the CA that commands trust. If it is set, they connect over TLS."""
SYSTEM_CA = "system"
"""The value that selects the system's CAs instead of a file."""


def default_bootstrap() -> str:
    """Return the broker address for commands: from the environment if it is set there, else the default."""
    return os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
