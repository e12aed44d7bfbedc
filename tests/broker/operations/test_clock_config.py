"""The clock moved by a broker configuration, for clients with nothing but Kafka's admin client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.errors import ErrorCode
from diamant.protocol.kraft.records import BROKER_RESOURCE
from tests.broker.compacted import produce, read
from tests.broker.configurations import BROKER, alter, describe
from tests.broker.operations.test_clock import DAY_MS, HOUR_MS, START_MS, frozen
from tests.broker.request_fields import APPEND, DELETE, SET
from tests.broker.wire import ALTER_CONFIGS, WireClient

ADVANCE = "diamant.clock.advance.ms"


async def advance(
    wire: WireClient, value: str | None, operation: int = SET, **fields: Any
) -> tuple[ErrorCode, str | None]:
    answer = await alter(wire, BROKER, "1", (ADVANCE, operation, value), **fields)
    return answer.error_code, answer.error_message


async def shown(wire: WireClient) -> dict[str, str]:
    result = await describe(wire, BROKER, "1")
    return {config.name: config.value for config in result.configs if config.name.startswith("diamant.clock.")}


async def test_everything_due_has_happened_when_the_answer_comes() -> None:
    """Superseded records are gone; the time is shown, nothing is stored, and the clock can be moved again."""
    async with frozen(node_id=1) as (broker, wire):
        await wire.create("t", 1, cleanup_policy="compact", max_compaction_lag_ms=str(HOUR_MS))
        await produce(wire, "t", "k=1", "k=2", timestamp=START_MS)
        assert await shown(wire) == {ADVANCE: "0", "diamant.clock.now.ms": str(START_MS)}
        assert await advance(wire, str(HOUR_MS + 1)) == (ErrorCode.NONE, None)
        assert [offset for offset, _, _ in await read(wire, "t", 0)] == [1]
        assert await advance(wire, "8d") == (ErrorCode.NONE, None)
        assert (await shown(wire))["diamant.clock.now.ms"] == str(START_MS + HOUR_MS + 1 + 8 * DAY_MS)
        assert (BROKER_RESOURCE, "1") not in broker.node.metadata.image.configs


async def test_with_other_configurations_and_validation_only() -> None:
    """The others are set; if one is refused, or only validated, the clock does not move."""
    async with frozen(node_id=1) as (broker, wire):
        assert await advance(wire, "1d", validate_only=True) == (ErrorCode.NONE, None)
        assert await advance(wire, None, DELETE) == (ErrorCode.NONE, None)
        refused = await alter(wire, BROKER, "1", (ADVANCE, SET, "1d"), ("log.cleaner.backoff.ms", SET, "soon"))
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert broker.clock.now_ms() == START_MS
        taken = await alter(wire, BROKER, "1", (ADVANCE, SET, "1d"), ("log.cleaner.backoff.ms", SET, "77"))
        assert taken.error_code == ErrorCode.NONE
        assert broker.clock.now_ms() == START_MS + DAY_MS
        assert broker.node.metadata.image.configs[BROKER_RESOURCE, "1"] == {"log.cleaner.backoff.ms": "77"}


@pytest.mark.parametrize("value", ["soon", "", "-1", "9" * 15 + "d"])
async def test_nonsense_is_refused(value: str) -> None:
    """Invalid moves are refused with a text that states the problem; the clock stays."""
    async with frozen(node_id=1) as (broker, wire):
        code, message = await advance(wire, value)
        assert code == ErrorCode.INVALID_CONFIG
        assert message
        assert await advance(wire, "1", APPEND) == (ErrorCode.INVALID_CONFIG, f"{ADVANCE}: only SET is possible")
        told = await alter(wire, BROKER, "1", ("diamant.clock.now.ms", SET, "1"))
        assert (told.error_code, told.error_message) == (
            ErrorCode.INVALID_CONFIG,
            "diamant.clock.now.ms can only be read",
        )
        assert broker.clock.now_ms() == START_MS


async def test_alter_configs_passes_it_over() -> None:
    """Clients that replace one value send back all described entries: it is no command there."""
    async with frozen(node_id=1) as (broker, wire):
        configs = [{"name": name, "value": value} for name, value in (await shown(wire)).items()]
        resource = {"resource_type": BROKER, "resource_name": "1", "configs": configs}
        answer = await wire.call(ALTER_CONFIGS, 2, {"resources": [resource], "validate_only": False})
        assert answer.responses[0].error_code == ErrorCode.NONE
        assert broker.node.metadata.image.configs.get((BROKER_RESOURCE, "1"), {}) == {}


async def test_the_systems_clock_is_not_moved(tmp_path: Path) -> None:
    """The page's attempt to move the system's clock is refused, with the flag that would allow it, and no entry is shown."""
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, node_id=1)) as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            code, message = await advance(wire, "1d")
            assert code == ErrorCode.INVALID_CONFIG
            assert message is not None
            assert "--clock manual" in message
            assert await shown(wire) == {}
