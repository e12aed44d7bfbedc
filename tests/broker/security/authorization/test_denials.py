"""A client without ACLs is denied by every API, with an error code declared in the API's row, and sees no data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.dispatch.table import TABLE
from diamant.broker.security.authorization.api_needs import API_NEEDS
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.apis import API_NAMES
from tests.broker.security.authorization.asking import ADMIN, Asker
from tests.broker.security.authorization.handed import HandedPrincipals
from tests.broker.security.authorization.questions import ALICE, ALL, QUESTIONS, Client

OF_NOTHING = {
    "fetch: by id": "unknown_topic_id",
    "produce: by unknown id": "unknown_topic_id",
    "delete topics: unknown id": "unknown_topic_id",
    "create topics: one named twice": "invalid_request",
}
"""Codes of parts that are about nothing that there is, beside those of the denial."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The responses to alice, who has no ACL, in a broker with topics, a group and a transactional id."""

    async def run() -> dict[str, Any]:
        config = BrokerConfig(
            listen="127.0.0.1:0",
            data_dir=tmp_path_factory.mktemp("denials"),
            authorizer_class_name="StandardAuthorizer",
            super_users=f"User:{ADMIN}",
        )
        async with Broker(config) as broker:
            asker = Asker(HandedPrincipals(broker).connect)
            await asker.prepare()
            answers = {name: await asker.ask(Client(ALICE), name) for name in ALL}
            await asker.close()
        return answers

    return asyncio.run(run())


def codes(value: Any) -> Iterator[str]:
    """The error codes in a response, without the 0 of parts whose items have their own codes."""
    if isinstance(value, list):
        for one in value:
            yield from codes(one)
    if not isinstance(value, dict):
        return
    inner = [code for name, one in value.items() if isinstance(one, list) for code in codes(one)]
    own = [value[name] for name in ("error_code", "partition_error_code") if name in value]
    own = [code for code in own if not (inner and code == "none")]
    yield from own + inner


@pytest.mark.parametrize("name", [name for name in ALL if not API_NEEDS[QUESTIONS[name].api_key].is_open])
def test_a_client_without_acls_is_denied(answers: dict[str, Any], name: str) -> None:
    """Each requested item gets an error code of the row's needs, or the list is empty."""
    declared = {need.denial.name.lower() for need in API_NEEDS[QUESTIONS[name].api_key].needs}
    answer = answers[name]
    found = set(codes(answer))
    if found == {"none"} or not found:
        lists = [one for one in answer.values() if isinstance(one, list)]
        assert lists, answer
        assert not any(lists), answer
    else:
        assert found - {OF_NOTHING.get(name)} <= declared, answer
        assert found & declared or name in OF_NOTHING, answer


@pytest.mark.parametrize("name", [name for name in ALL if API_NEEDS[QUESTIONS[name].api_key].is_open])
def test_what_is_open_to_all_shows_no_topic_and_no_group(answers: dict[str, Any], name: str) -> None:
    """It shows addresses and versions. Topics are only denied, and no authorized operations are shown."""
    answer = answers[name]
    for topic in answer.get("topics", ()):
        assert (topic["error_code"], topic["partitions"]) == ("topic_authorization_failed", [])
    assert answer.get("cluster_authorized_operations", 0) <= 0


def test_every_api_that_needs_something_is_asked() -> None:
    """A row without a question would not be tested."""
    asked = {QUESTIONS[name].api_key for name in ALL}
    assert {API_NAMES[key] for key in TABLE if API_NEEDS[key].needs and key not in asked} == set()


def test_denials_have_codes_of_their_own() -> None:
    """The error code of each need names the resource type."""
    assert {need.denial for row in API_NEEDS.values() for need in row.needs} <= {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
