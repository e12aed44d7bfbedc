"""An erasure stopped at any point resumes at the next start, and never stores a key longer than necessary.

A killed process leaves its files as they are. So the data directory is copied before each rename or removal of an erasure's
file and before each swap of a segment, and a new broker is started on every copy.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.erase.erase_result import EraseFailed
from diamant.cleaner.erasure_state.intent import CLOSING, Intent
from diamant.cleaner.evidence.certificates.certificate import parse_certificate
from diamant.cleaner.evidence.search.needles import VALUE
from diamant.progress import Progress
from tests import effort
from tests.broker.erasure.brokers import broker_at, config, data_of, env_of, move_to
from tests.broker.erasure.constants import DAY_MS, KEY, PERSON, RETRY_MS, START_MS
from tests.broker.erasure.copying_env import CopyingEnv
from tests.broker.erasure.erasing import erase, intents_of, unfinished, wait_idle
from tests.broker.erasure.issued import (
    certificates_in,
    certificates_of,
    certified_at,
    check_claims,
    intent_of,
    only_certificate,
    verify,
    wait_certified,
)
from tests.broker.erasure.obstacles import SCANNING, at_stage, stopped
from tests.broker.erasure.records import create_with_key, values_left
from tests.cleaner.evidence.scan.naive_scanner import files_with
from tests.waiting import wait_until

LOCATING = "locating the key"
"""The first stage of an erasure."""


def at_last_scan(broker: Broker, act: Callable[[], object]) -> Progress:
    """Return the progress of a call, with an action before the scan that follows the certificate for values."""
    return at_stage(SCANNING, lambda: act() if certificates_of(broker, "values-gone") else None)


async def copies_of_an_erasure(tmp_path: Path, *, is_now: bool) -> list[str]:
    """Erase a key up to `key-gone`, with a copy at each point; return the points."""
    env = CopyingEnv(tmp_path / "data")
    async with Broker(config(tmp_path), env=env) as broker:
        await create_with_key(broker, others=8, codec=4)
        env.copies = tmp_path / "copies"
        erasure = await erase(broker, now=is_now)
        if not is_now:
            assert erasure.state == "values-gone"
            await certified_at(broker, START_MS + DAY_MS, "key-gone")
        env.copy("over")
        env.copies = None
    return env.points


def traces(directory: Path) -> list[str]:
    """Return the files of an erasure in a data directory, without certificates."""
    return [path.name for path in directory.glob("diamant-erasure-*") if path.suffix != ".json"]


async def check_goes_on(tmp_path: Path, index: int) -> bool:
    """Start a broker on a copy; return whether an erasure resumed or had ended. One that had not begun leaves nothing."""
    directory = tmp_path / "copies" / str(index)
    shutil.copytree(tmp_path / "keys", directory / "keys")
    began = any(name.endswith((".intent", ".pending")) for name in traces(directory / "data"))
    ended = certificates_in(directory / "data", "key-gone") != []
    async with broker_at(directory, START_MS + 1) as broker:
        if began:
            for now_ms in (START_MS + 1, START_MS + DAY_MS + RETRY_MS, START_MS + 2 * DAY_MS):
                move_to(broker, now_ms)
                await wait_idle(broker)
        found = certificates_of(broker, "key-gone")
        assert traces(data_of(broker)) == []
        if not (began or ended):
            assert (found, len(values_left(broker))) == ([], 1)
            return False
        (path,) = found
        certificate = parse_certificate(path.read_bytes())
        check_claims(data_of(broker), certificate, KEY)
        assert values_left(broker) == []
        assert files_with(data_of(broker), PERSON) == []
        assert files_with(data_of(broker), KEY) == []
        assert certificate["found"][0]["values"] == 1
        assert [one["file"] for one in certificate["segments"]["before"]] == certificate["found"][0]["files"]
        verified = await verify(broker, certificate)
        assert verified.is_valid, verified.notes
        return True


@pytest.mark.slow
@pytest.mark.parametrize("is_now", [False, True])
async def test_an_erasure_that_is_killed_at_any_point_ends_all_the_same(tmp_path: Path, *, is_now: bool) -> None:
    """Once its intent exists: values and key are gone, the certificate verifies, and no trace is left."""
    points = await copies_of_an_erasure(tmp_path, is_now=is_now)
    names = " ".join(points)
    for expected in (
        ".intent",
        ".log.deleted",
        ".values-gone.json",
        ".key-gone.json.pending",
        ".key-gone.json",
        "over",
    ):
        assert expected in names
    went_on = []
    # Swaps of segments, which are stopped at every point in the tests of the cleaner, are sampled.
    chosen = [index for index, what in enumerate(points) if "erasure" in what or what == "over" or index % 4 == 0]
    chosen = list(effort.some(chosen, every=4))
    for index in chosen:
        print(f"killed before: {points[index]}")
        went_on.append(await check_goes_on(tmp_path, index))
    began = next(index for index, what in enumerate(points) if what.endswith(".intent"))
    assert went_on == [index > began for index in chosen]


async def test_the_last_scan_finds_a_directory_that_has_nothing_of_the_key(broker: Broker) -> None:
    """The remaining intent has no key; the certificate is visible only after the intent is removed."""
    await create_with_key(broker)
    seen: list[Intent] = []
    removed_before: list[list[Path]] = []
    env_of(broker).before("remove", "*.intent", lambda: removed_before.append(certificates_of(broker, "key-gone")))
    erasure = await erase(broker, now=True, progress=at_stage(SCANNING, lambda: seen.append(intent_of(broker))))
    assert (erasure.state, removed_before) == ("key-gone", [[]])
    first, last = seen
    assert (first.key, last.key, last.phase) == (KEY, b"", CLOSING)
    assert {one.kind for one in last.needles} == {VALUE}
    assert bytes.fromhex(last.key_digest) == bytes.fromhex(erasure.certificate["request"]["key_hmac"])
    assert KEY not in last.to_bytes()
    assert KEY.hex().encode() not in last.to_bytes()
    assert erasure.certificate["coverage"]["values_searched_for"] == 1


async def test_a_last_scan_without_the_key_says_what_it_could_not_look_for(tmp_path: Path) -> None:
    """Stopped after it dropped the key, an erasure recognises records by digest, and still looks for copies of the values."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        with pytest.raises(EraseFailed):
            await erase(broker, now=True, progress=at_last_scan(broker, stopped))
        (path,) = intents_of(broker)
        assert KEY not in path.read_bytes()
    async with broker_at(tmp_path, START_MS + RETRY_MS) as broker:
        await wait_certified(broker, "key-gone")
        certificate = only_certificate(broker, "key-gone")
        assert certificate["coverage"]["values_searched_for"] == 1
        assert "Bytes of the key outside of records" in certificate["not_covered"][-1]
        assert "by its digest only" in certificate["not_covered"][-1]
        assert (certificate["request"]["key_bytes"], traces(data_of(broker))) == (len(KEY), [])


async def test_a_value_that_comes_back_delays_the_certificate(broker: Broker) -> None:
    """A value that comes back is retried, so the intent holds the key again."""
    await create_with_key(broker)
    log = data_of(broker) / "users-0" / "00000000000000000000.log"
    old = log.read_bytes()
    come_back = at_last_scan(broker, lambda: log.with_suffix(".log.swap").write_bytes(old))
    erasure = await erase(broker, now=True, progress=come_back)
    assert (erasure.state, erasure.next_due_ms) == ("not-certified", START_MS + RETRY_MS)
    assert [one["id"] for one in unfinished(broker)] == [erasure.id]
    assert (await broker.services.certificates().last(erasure.id))["state"] == "not-certified"
    log.with_suffix(".log.swap").unlink()
    await certified_at(broker, START_MS + RETRY_MS, "key-gone")
    assert traces(data_of(broker)) == []


async def test_an_erasure_that_takes_longer_than_its_next_try_is_not_begun_twice(broker: Broker) -> None:
    """During an attempt the erasure is never due."""
    await create_with_key(broker)
    tries: list[None] = []

    def begin_late() -> None:
        tries.append(None)
        move_to(broker, START_MS + 10 * RETRY_MS)

    assert (await erase(broker, progress=at_stage(LOCATING, begin_late))).state == "values-gone"
    await wait_until(lambda: not broker.node.scheduler.is_due)
    assert (len(tries), len(certificates_of(broker, "*")), bool(broker.services.erasures().table.busy)) == (1, 1, False)
    assert values_left(broker) == [None]


@pytest.mark.parametrize("stage", [LOCATING, "compacting", SCANNING])
async def test_an_erasure_that_was_interrupted_continues_at_the_next_start(tmp_path: Path, stage: str) -> None:
    """An erasure continues in any phase. Its intent is readable by its owner only, and reveals nothing without the secret."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker, others=30)
        with pytest.raises(EraseFailed):
            await erase(broker, progress=at_stage(stage, stopped))
        (intent,) = intents_of(broker)
        assert stat.S_IMODE(intent.stat().st_mode) == 0o600
        assert KEY not in intent.read_bytes()
    async with broker_at(tmp_path, START_MS + 1) as broker:
        await wait_certified(broker, "values-gone")
        certificate = only_certificate(broker, "values-gone")
        assert certificate["found"][0]["values"] == 1
        assert files_with(data_of(broker), PERSON) == []
        check_claims(data_of(broker), certificate, KEY)
