"""A few hundred administrative requests get the answers of a real Kafka 4.4.0."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.handlers.admin_cases import SCRIPT, run_script
from tests.protocol.wire.field_names import unknown_fields

RECORDED = Path(__file__).parents[1].parent / "golden" / "admin"
OF_4_3: dict[str, Any] = json.loads((RECORDED / "answers.json").read_text(encoding="utf-8"))
GOLDEN: dict[str, Any] = OF_4_3 | json.loads((RECORDED / "differs_in_4.4.0.json").read_text(encoding="utf-8"))

BY_LEVEL = (
    "features: newest metadata.version",
    "features: metadata.version down",
    "features: metadata.version down, unsafe",
)
"""Kafka 4.4.0 answers these as 4.3.1 does, in a directory that 4.3.1 has formatted, and all others as in its own."""

ADVICE = re.compile(
    r" Diamant is one broker: with diamant\.replication\.factor\.max=\d+ it accepts this, and keeps one replica\."
)

DEVIATIONS: dict[str, tuple[str, str | None]] = {
    "topic: unknown operation": ("INVALID_REQUEST", "Unknown operation 9 for retention.ms, expected 0 to 3"),
    "broker: too many cleaners": (
        "INVALID_REQUEST",
        "log.cleaner.threads cannot be changed from 2 to 9 in one step, only to between 1 and 4",
    ),
    "broker: dynamic, of no use here": ("INVALID_REQUEST", "Cannot update these configs dynamically: [num.io.threads]"),
    "scram: no password": ("UNACCEPTABLE_CREDENTIAL", "Password must not be empty"),
}
"""Where we answer otherwise on purpose: error and message of the one result. Kafka fails on the first and the last with
UNKNOWN_SERVER_ERROR, and its message for the second names a Java class instead of the configuration. The third it accepts; here
nothing would act on it.
"""


async def answers_of(directory: Path, **properties: str) -> dict[str, Any]:
    """Our answers, all from one broker."""
    named = {"node.id": "1", "advertised.listeners": "PLAINTEXT://127.0.0.1:0", **properties}
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=directory, properties=named)
    async with Broker(config) as broker:
        return await run_script(broker.bootstrap_servers)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Our answers, in a directory for Kafka 4.4."""
    return asyncio.run(answers_of(tmp_path_factory.mktemp("admin"), **{"diamant.release.version": "4.4"}))


def shown(answer: Any) -> str:
    """Return an answer as text. The entries of DescribeClientQuotas are in no order: Kafka's is that of a hash table."""
    if isinstance(answer, dict) and answer.get("entries"):
        answer = {**answer, "entries": sorted(answer["entries"], key=json.dumps)}
    return ADVICE.sub("", json.dumps(answer))


def test_the_recording_is_of_this_script() -> None:
    """The recorded answers are exactly those of the script's cases."""
    assert list(GOLDEN) == [case.name for case in SCRIPT]


@pytest.mark.parametrize("case", [case for case in SCRIPT if case.name not in DEVIATIONS], ids=lambda case: case.name)
def test_answer_is_as_kafkas(answers: dict[str, Any], case: Any) -> None:
    """Codes, messages and shapes equal the recorded answer, but for the advice at the end of some messages."""
    assert shown(answers[case.name]) == shown(GOLDEN[case.name])


@pytest.mark.slow
async def test_in_a_directory_for_kafka_4_3_only_answers_about_levels_are_those_of_4_3(tmp_path: Path) -> None:
    """In directories for Kafka 4.3, the default, only the answers about levels differ from those of 4.4."""
    found = await answers_of(tmp_path)
    kafkas = GOLDEN | {name: OF_4_3[name] for name in BY_LEVEL}
    assert {name for name in kafkas if shown(found[name]) != shown(kafkas[name])} == set(DEVIATIONS)


@pytest.mark.parametrize("name", DEVIATIONS)
def test_deviations_are_these(answers: dict[str, Any], name: str) -> None:
    """Deviations differ in error and message only."""
    ours, kafkas = (next(iter(answer.values()))[0] for answer in (answers[name], GOLDEN[name]))
    assert (ours["error_code"], ours["error_message"]) == DEVIATIONS[name]
    assert {**ours, "error_code": 0, "error_message": 0} == {**kafkas, "error_code": 0, "error_message": 0}


def test_every_request_field_exists() -> None:
    """A misspelled field would be omitted silently."""
    wrong = {case.name: unknown_fields(case.api_key, "request", case.fields) for case in SCRIPT}
    assert {name: fields for name, fields in wrong.items() if fields} == {}
