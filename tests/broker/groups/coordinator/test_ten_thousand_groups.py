"""Ten thousand groups at once, over the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from tests.broker.groups.offsets.offset_requests import commit, find_coordinator, join
from tests.broker.wire import WireClient

COUNT = 10_000
HEARTBEAT, LIST_GROUPS = 12, 16


@pytest.mark.long
async def test_ten_thousand_groups(make_broker: Callable[..., Broker]) -> None:
    """Each has a member that joins, syncs, commits and continues; none hangs, and a restart restores all."""
    async with (
        make_broker(group_initial_rebalance_delay_ms=0) as broker,
        WireClient(broker.bootstrap_servers) as client,
    ):
        await client.create("t", 1)
        await find_coordinator(client)
        members = []
        for number in range(COUNT):
            members.append(await join(client, f"group-{number}", "t"))
            assert await commit(client, f"group-{number}", {("t", 0): 7}, member=members[-1]) == [ErrorCode.NONE]
        assert await _states(client) == {"Stable": COUNT}
    async with (
        make_broker(group_initial_rebalance_delay_ms=0) as broker,
        WireClient(broker.bootstrap_servers) as client,
    ):
        await broker.services.groups().loaded()
        assert await _states(client) == {"Stable": COUNT}
        codes: Counter[int] = Counter()
        for member in members:
            fields = {"group_id": member.group_id, "generation_id": member.generation, "member_id": member.member_id}
            codes[(await client.call(HEARTBEAT, 2, fields)).error_code] += 1
        assert codes == {ErrorCode.NONE: COUNT}


async def _states(client: WireClient) -> Counter[str]:
    answer = await client.call(LIST_GROUPS, 4, {"states_filter": []})
    return Counter(group.group_state for group in answer.groups)
