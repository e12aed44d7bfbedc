"""Frames before authentication, at random: in process by the million, and some over sockets."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.security.sasl.fuzzing import MAX_FRAMES, Figures, frame_of, fuzz
from tests.broker.security.sasl.sasl_wire import ALICE, SaslClient
from tests.broker.wire import WireClient

SEED = 1


def check(figures: Figures, growth_bytes: int) -> None:
    """Only the three APIs were decoded, some clients were authenticated, and memory did not grow."""
    assert set(figures.decoded) == {17, 18, 36}
    assert 0 < figures.authenticated < figures.connections / 20
    assert figures.resident_bytes[-1] - figures.resident_bytes[2] < growth_bytes


async def test_twenty_thousand_frames() -> None:
    """Each frame is refused or answered correctly; the seed is 1."""
    check(await fuzz(20_000, SEED), 16 << 20)


@pytest.mark.long
async def test_a_million_frames() -> None:
    """The same for a million; `python -m tests.broker.security.sasl.fuzzing 10000000` takes some minutes."""
    check(await fuzz(1_000_000, SEED), 4 << 20)


async def test_frames_over_sockets(tmp_path: Path) -> None:
    """The broker still serves clients that log in."""
    generator = random.Random(SEED)
    properties = {"connection.failed.authentication.delay.ms": "0"}
    config = BrokerConfig("SASL_PLAINTEXT://127.0.0.1:0", tmp_path, properties, users={"alice": "secret"})
    async with Broker(config) as broker:
        for _ in range(60):
            async with WireClient(broker.bootstrap_servers) as wire:
                for _ in range(generator.randint(1, MAX_FRAMES)):
                    frame, _ = frame_of(generator, False, [ALICE[:-1], b"", b"\0a\0b"])
                    wire.writer.write(frame)
                wire.writer.write_eof()
                async with asyncio.timeout(60):
                    try:
                        while await wire.reader.read(65536):
                            pass
                    except ConnectionError:
                        pass
        async with WireClient(broker.bootstrap_servers) as wire:
            client = SaslClient(wire)
            await client.handshake()
            assert (await client.authenticate(ALICE))[0] == 0
            assert await client.is_served()
