"""The connection to a broker: how a response arrives."""

from __future__ import annotations

import socket
from struct import pack
from threading import Thread

import pytest

from diamant.broker.client.kafka_connection import ConnectionFailed, KafkaConnection
from diamant.protocol.wire.apis import FETCH

BODY = bytes(range(100))
API_VERSIONS = pack(">iihi", 10, 1, 0, 0)
"""A response without APIs."""


def frame(correlation_id: int, body: bytes) -> bytes:
    """Return a response without further header."""
    return pack(">ii", 4 + len(body), correlation_id) + body


def test_a_response_is_received_in_the_given_memory_if_it_fits_there() -> None:
    """One that does not gets memory of its own, and one that is cut off is an error."""
    cut_off = frame(4, BODY)[:-1]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            accepted, _ = server.accept()
            with accepted:
                assert accepted.recv(1000)
                accepted.sendall(API_VERSIONS + frame(2, BODY) + frame(3, BODY * 3) + cut_off)

        thread = Thread(target=answer)
        thread.start()
        memory = memoryview(bytearray(200))
        with KafkaConnection("127.0.0.1", server.getsockname()[1], timeout_s=30) as connection:
            for body, is_in_memory in ((BODY, True), (BODY * 3, False)):
                found = connection.receive(FETCH, 11, memory)
                assert (found == body, found.obj is memory.obj) == (True, is_in_memory)
            with pytest.raises(ConnectionFailed, match="closed the connection"):
                connection.receive(FETCH, 11, memory)
        thread.join()
