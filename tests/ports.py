"""Ports of the loopback for what has to be told its port before it listens, or listens twice on the same."""

from __future__ import annotations

import socket


class ReservedPort:
    """A port that is free until `close`, or the end of `with`: whoever is told of it may listen, and nobody else is given it."""

    def __init__(self) -> None:
        # Bound and not listening: the system gives the port to nobody who asks for any, and lets those have it that ask for it
        # with SO_REUSEADDR, as servers do.
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.number}"

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Have nothing to do with the port any more; who listens there goes on."""
        self._socket.close()
