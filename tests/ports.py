"""Ports of the loopback for what has to be told its port before it listens, or listens twice on the same."""

from __future__ import annotations

import socket


class ReservedPort:
    """A port reserved until `close`, or the end of `with`: a server that is given it may listen, no other gets it."""

    def __init__(self, number: int = 0) -> None:
        # Bound and not listening: the system does not hand it out for port 0. A server that asks for it by number, with
        # SO_REUSEADDR, gets it.
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", number))
        except BaseException:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.number}"

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the reservation; a listener on the port stays."""
        self._socket.close()


def reserved_row(count: int) -> list[ReservedPort]:
    """Reserve ports that follow one another."""
    while True:
        row = [ReservedPort()]
        try:
            while len(row) < count:
                row.append(ReservedPort(row[-1].number + 1))
            return row
        except (OSError, OverflowError):
            for one in row:
                one.close()
