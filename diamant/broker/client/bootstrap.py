"""The default address of the broker for commands and clients."""

from __future__ import annotations

import os

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "DIAMANT_BOOTSTRAP_SERVERS"
USER_VARIABLE = "DIAMANT_USER"
"""The login of commands: `NAME:PASSWORD-FILE`."""
CA_VARIABLE = "DIAMANT_CA"
"""The PEM file with the CA that commands trust. If set, they connect by TLS."""
SYSTEM_CA = "system"
"""The value, in place of a file, that trusts the system's CAs."""


def default_bootstrap() -> str:
    """Return the address for commands: the environment's if set, else the default."""
    return os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
