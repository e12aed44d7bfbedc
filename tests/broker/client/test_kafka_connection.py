"""The connection to a broker: how a response arrives."""

from __future__ import annotations

import socket
from struct import pack
from threading import Event, Thread

import pytest

from diamant.broker.client.kafka_connection import GATHERED_BYTES, ConnectionFailed, KafkaConnection
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
                ((found, is_whole),) = connection.arriving(FETCH, 11, memory, 1000)
                assert (found == body, is_whole, found.obj is memory.obj) == (True, True, is_in_memory)
            with pytest.raises(ConnectionFailed, match="closed the connection"):
                list(connection.arriving(FETCH, 11, memory, 1000))
        thread.join()


@pytest.mark.parametrize("size", [100, GATHERED_BYTES * 2])
def test_a_response_is_given_out_as_it_arrives(size: int) -> None:
    """The rest is not waited for, once there is a piece of it."""
    body = bytes(size)
    half = size // 2
    response = frame(2, body)
    with socket.create_server(("127.0.0.1", 0)) as server:
        has_first = Event()

        def answer() -> None:
            accepted, _ = server.accept()
            with accepted:
                assert accepted.recv(1000)
                accepted.sendall(API_VERSIONS + response[: 8 + half])
                assert has_first.wait(timeout=60)
                accepted.sendall(response[8 + half :])

        thread = Thread(target=answer)
        thread.start()
        with KafkaConnection("127.0.0.1", server.getsockname()[1], timeout_s=30) as connection:
            found = []
            for arrived, is_whole in connection.arriving(FETCH, 11, memoryview(bytearray(4 + size)), half):
                found.append((bytes(arrived), is_whole))
                has_first.set()
        thread.join()
    assert found == [(body[:half], False), (body, True)]


def test_a_response_that_is_cut_off_is_not_waited_for() -> None:
    """However many bytes the system was to gather."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            accepted, _ = server.accept()
            with accepted:
                assert accepted.recv(1000)
                accepted.sendall(API_VERSIONS + frame(2, bytes(GATHERED_BYTES))[:-1])

        thread = Thread(target=answer)
        thread.start()
        with (
            KafkaConnection("127.0.0.1", server.getsockname()[1], timeout_s=600) as connection,
            pytest.raises(ConnectionFailed, match="closed the connection"),
        ):
            list(connection.arriving(FETCH, 11, memoryview(b""), GATHERED_BYTES))
        thread.join()
