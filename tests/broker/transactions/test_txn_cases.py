"""Our broker answers the table of odd requests about transactions as Kafka 4.3.1 does."""

from __future__ import annotations

import uuid

import pytest

from diamant.broker.broker import Broker
from tests.broker.transactions.txn_cases import CASES, run_case


@pytest.mark.parametrize("name", CASES)
async def test_case(diamant_broker: Broker, name: str) -> None:
    """Every step gets the error code, and every transaction the state and epoch, that Kafka gives."""
    run_name = f"{name}-{uuid.uuid4().hex[:8]}"
    assert await run_case(diamant_broker.bootstrap_servers, name, run_name=run_name) == []
