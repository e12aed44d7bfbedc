"""Real clients at the limits: messages of 10 MB, and many numbered messages."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator, Sequence
from hashlib import sha256

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.errors import ErrorCode
from tests.broker.real_clients import CLIENTS, MAX_MESSAGE_BYTES, Client, Message, Read
from tests.broker.wire import WireClient

pytestmark = pytest.mark.slow

LARGE_BYTES = 10_000_000

# One that compresses to nothing, one that does not compress, and the end of the log after them.
LARGE = [Message(None, value) for value in (b"x" * LARGE_BYTES, random.Random(10).randbytes(LARGE_BYTES), b"the last")]


def digests(values: Sequence[Message | Read]) -> list[str]:
    """Digests, to compare instead of 10 MB."""
    return [f"{len(one.value or b'')} bytes, {sha256(one.value or b'').hexdigest()}" for one in values]


@pytest.fixture(scope="module")
def roomy_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker whose data, which are large, are removed with this module."""
    data_dir = tmp_path_factory.mktemp("large")
    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=data_dir, auto_create_topics_enable=False)) as broker:
        yield broker
    shutil.rmtree(data_dir)


@pytest.fixture
def servers(roomy_broker: BlockingBroker, diamant_topic: str) -> str:
    """The address of a broker with a topic that allows large messages."""

    async def run() -> None:
        async with WireClient(roomy_broker.bootstrap_servers) as client:
            created = await client.create(diamant_topic, max_message_bytes=str(MAX_MESSAGE_BYTES))
            assert created.error_code == ErrorCode.NONE, created

    asyncio.run(run())
    return roomy_broker.bootstrap_servers


@pytest.mark.parametrize("client", CLIENTS)
def test_messages_of_ten_megabytes_pass(servers: str, diamant_topic: str, client: Client) -> None:
    """Messages of 10 MB pass unchanged where the topic allows them, even to a consumer with a smaller limit (KIP-74)."""
    assert client.produce(servers, diamant_topic, LARGE) == [0, 1, 2]
    received = client.consume(servers, diamant_topic, fetch_bytes=1_000_000)
    assert [one.offset for one in received] == [0, 1, 2]
    assert digests(received) == digests(LARGE)


@pytest.mark.parametrize("client", CLIENTS)
def test_ten_megabytes_of_another_client(servers: str, diamant_topic: str, client: Client) -> None:
    """Every client reads the compressed messages of every other client."""
    client.produce(servers, diamant_topic, LARGE, codec="lz4")
    for (other,) in (one.values for one in CLIENTS):
        if other is not client:
            assert digests(other.consume(servers, diamant_topic)) == digests(LARGE)


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("client", CLIENTS)
def test_many_messages_arrive_once_and_in_order(servers: str, diamant_topic: str, client: Client, count: int) -> None:
    """Every message arrives once, at its own offset, in the order of sending."""
    values = [b"%d" % number for number in range(count)]
    messages = [Message(None, value) for value in values]
    assert client.produce(servers, diamant_topic, messages, idempotent=True) == list(range(count))
    received = client.consume(servers, diamant_topic)
    assert len(received) == count
    assert [(one.offset, one.value) for one in received] == list(enumerate(values))
