"""The log of denied requests: at most one line per address and minute, which includes the number of denials omitted before it.

Bounds: `MAX_ADDRESSES`; further addresses share a line.

Source: StandardAuthorizerData.logAuditMessage, which logs every denial.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from diamant.broker.security.authorization.authorizer import Client
from diamant.broker.security.authorization.permissions import Permission

logger = logging.getLogger(__name__)

PAUSE_S = 60.0
MAX_ADDRESSES = 1_000
OTHERS = "other addresses"


class DenialLog:
    """The denial log of one authorizer, set as its `on_denial`. Belongs to the loop thread."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._lines: dict[str, tuple[float, int]] = {}
        """By address: the time of its last line, and the number of denials omitted since."""

    def __call__(self, client: Client, permission: Permission, name: str) -> None:
        principal, address = client
        now_s = self._now_s()
        if address not in self._lines and len(self._lines) >= MAX_ADDRESSES:
            self._lines = {one: line for one, line in self._lines.items() if now_s - line[0] < PAUSE_S}
            if len(self._lines) >= MAX_ADDRESSES:
                address = OTHERS
        since_s, left_out = self._lines.get(address, (-PAUSE_S + now_s, 0))
        if now_s - since_s < PAUSE_S:
            self._lines[address] = since_s, left_out + 1
            return
        self._lines[address] = now_s, 0
        more = f"; {left_out} more were denied since the previous line" if left_out else ""
        # Clients choose these names. Escaping and truncation prevent them from forging log lines.
        logger.info("%s: denied: %.260r needs %s %.260r%s", address, str(principal), permission, name, more)
