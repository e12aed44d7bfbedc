"""Two thousand questions about access (API, operation, pattern, principal, host), answered as by Kafka 4.3.1 and 4.4.0."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.dispatch.api_table import TABLE
from diamant.protocol.wire.apis import API_NAMES
from tests.broker.security.authorization import recorded
from tests.broker.security.authorization.asking import ADMIN, Asker
from tests.broker.security.authorization.handed import HandedPrincipals
from tests.broker.security.authorization.questions import (
    QUESTIONS,
    SCENARIOS,
    WITHOUT_ACL_ALLOWED,
    Scenario,
)
from tests.protocol.wire.field_names import unknown_fields

KAFKAS = recorded.read()


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """Our responses, from two brokers."""

    async def ask(scenarios: Sequence[Scenario], *, allows_by_default: bool) -> dict[str, Any]:
        async with Broker(
            authorizer_class_name="StandardAuthorizer",
            super_users=f"User:{ADMIN}",
            allow_everyone_if_no_acl_found=allows_by_default,
            offsets_topic_num_partitions=3,
            transaction_state_log_num_partitions=3,
            share_coordinator_state_topic_num_partitions=3,
        ) as broker:
            asker = Asker(HandedPrincipals(broker).connect)
            await asker.prepare()
            answers = await asker.answers(scenarios)
            await asker.close()
        return answers

    async def ask_both() -> dict[str, Any]:
        some = await ask(SCENARIOS, allows_by_default=False)
        return some | await ask(WITHOUT_ACL_ALLOWED, allows_by_default=True)

    found: dict[str, Any] = json.loads(json.dumps(asyncio.run(ask_both())))
    return found


def test_the_recording_is_of_these_questions(answers: dict[str, Any]) -> None:
    """Each question has a recorded answer, and there are no others."""
    assert list(answers) == list(KAFKAS)
    assert len(KAFKAS) > 2000


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_as_kafkas(answers: dict[str, Any], question: str) -> None:
    """In every scenario and for every client, codes and parts are the same, and the same parts are left out."""
    asked = [name for name in KAFKAS if name.endswith(f" / {question}")]
    assert {name: answers[name] for name in asked} == {name: KAFKAS[name] for name in asked}


def test_every_request_field_exists() -> None:
    """A misspelled field would be ignored silently."""
    ids = dict.fromkeys(("users", "orders"), None)
    wrong = {
        name: unknown_fields(one.api_key, "request", one.fields(ids))  # type: ignore[arg-type]
        for name, one in QUESTIONS.items()
    }
    assert {name: fields for name, fields in wrong.items() if fields} == {}


def test_every_api_is_asked() -> None:
    """Questions cover all APIs that the broker serves, except delegation tokens, which are not supported."""
    asked = {question.api_key for question in QUESTIONS.values()}
    tokens_and_authentication = {38, 39, 40, 41, 17, 36}
    assert {API_NAMES[key] for key in TABLE.keys() - asked - tokens_and_authentication} == set()
