"""What people and disks do to erasures: a clear error or an honest report, never a certificate for what was not scanned."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.verbs import erasing
from diamant.broker.verbs.errors import BadArgument, NotPossible, TooMany, VerbError
from diamant.cleaner.evidence import intent as intents
from diamant.protocol.records import Header
from diamant.storage.env import RealFile
from tests.broker.erasing.cases import (
    KEY,
    PERSON,
    RETRY_MS,
    START_MS,
    certificates_in,
    check_claims,
    config,
    create,
    data_of,
    env_at,
    erase,
    fill,
    move_to,
    pinned,
    write,
)
from tests.broker.http_asking import ask
from tests.cleaner.evidence.naive_scanner import log_files, records_in, records_of_key
from tests.waiting import wait_until


def no_space(*_arguments: Any, **_options: Any) -> Any:
    """What the operating system says."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")


# -- keys and values ---------------------------------------------------------------------------------------------------------


async def test_the_key_42_and_the_value_of_two_braces_are_told_from_those_everywhere(broker: Broker) -> None:
    """As values, in headers, as parts of keys, and under other keys they stay, and make nothing inconclusive."""
    await create(broker)
    await create(broker, "orders", policy="delete")
    everywhere = [Header("42", b"{}"), Header("{}", b"42")]
    for number in range(40):
        write(broker, (b"%d" % number, b"{}"), (b"142", b"42"), codec=number % 5, headers=everywhere)
    write(broker, (b"42", b"{}"), (b"42", b"42"), (b"4", b"2"), (b"{}", b"{}"), codec=2, headers=everywhere)
    write(broker, (b"42", b"{}"), topic="orders")
    erasure = await erase(broker, b"42")
    assert (erasure.state, erasure.certificate["found"][0]["values"]) == ("values-gone", 2)
    assert [one.value for one in records_of_key(data_of(broker), "users", b"42")] == [None]
    check_claims(data_of(broker), erasure.certificate, b"42")
    kept = {(one.key, one.value) for path in log_files(data_of(broker), "users") for one in records_in(path)}
    assert {(b"7", b"{}"), (b"142", b"42"), (b"{}", b"{}"), (b"4", b"2")} <= kept
    # The same key in a topic that was not named is named, and stays; values under other keys mean nothing.
    assert [one["what"] for one in erasure.certificate["elsewhere"]] == ["same-key"]
    assert len(records_of_key(data_of(broker), "orders", b"42")) == 1


@pytest.mark.parametrize(
    "count", [pytest.param(100, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.long)]
)
async def test_a_key_in_a_thousand_partitions_is_erased_and_verified_over_http(tmp_path: Path, count: int) -> None:
    """One certificate about all of them, which fits into a request."""
    properties = {"diamant.http.listen": "127.0.0.1:0"}
    async with Broker(config(tmp_path, **properties), env=env_at()) as broker:
        await create(broker, partitions=count)
        for partition in range(count):
            write(broker, (KEY, PERSON), (b"other", b"stays"), partition=partition)
        erasure = await erase(broker)
        assert erasure.state == "values-gone"
        certificate = erasure.certificate
        assert (len(certificate["claims"]), len(certificate["found"]), len(certificate["done"])) == (
            count,
            count,
            count,
        )
        size = len(json.dumps(certificate))
        assert size > 64 * 1024
        fields = {"certificate": certificate, "public_key": pinned(certificate).hex(), "key": KEY.decode()}
        answer = await ask(broker, "POST", "/v1/verify?wait_ms=60000", fields)
        assert answer.status == 200, answer.body[:300]
        assert answer.json["is_valid"], answer.json["notes"]
        check_claims(data_of(broker), certificate, KEY)


async def test_a_body_beyond_the_limit_is_refused_with_the_limit(tmp_path: Path) -> None:
    """A certificate of more than 8 MiB is none that the broker has issued; it says how large it may be."""
    async with Broker(config(tmp_path, **{"diamant.http.listen": "127.0.0.1:0"}), env=env_at()) as broker:
        headers: dict[str, str | None] = {"Content-Length": str(9 * 1024 * 1024)}
        answer = await ask(broker, "POST", "/v1/verify", "{", headers=headers)
        assert (answer.status, "8388608 are possible" in answer.body.decode()) == (413, True)


async def test_keys_that_are_too_long_and_texts_that_are_too_long_are_refused(broker: Broker) -> None:
    """Before anything is written, and without the key in the text."""
    await create(broker)
    for key, reason in ((b"k" * (64 * 1024 + 1), "r"), (KEY, "r" * 1001), (KEY, "")):
        with pytest.raises(BadArgument) as raised:
            await broker.erase(key, ["users"], reason=reason)
        assert "kkk" not in str(raised.value)
    assert list(data_of(broker).glob("diamant-erasure-*")) == []


async def test_too_many_unfinished_erasures_are_refused(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a horizon is bounded."""
    monkeypatch.setattr("diamant.broker.verbs.undertakings.MAX_UNFINISHED", 1)
    await create(broker)
    write(broker, (KEY, PERSON))
    await erase(broker)
    with pytest.raises(TooMany):
        await erase(broker, b"another")


# -- overriding the horizon ----------------------------------------------------------------------------------------------------


async def groups_at(broker: Broker, monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """Have one group with a committed offset."""
    from diamant.broker.verbs import explaining

    async def groups_of(*_arguments: Any) -> list[tuple[int, str]]:
        return [(offset, "billing")]

    monkeypatch.setattr(explaining, "groups_of", groups_of)


async def test_now_lists_the_groups_that_are_behind_and_stops_there(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values go, the tombstone stays for them until its horizon; once they are confirmed it goes."""
    await create(broker)
    write(broker, (KEY, PERSON))
    await groups_at(broker, monkeypatch, 1)
    refused = await erase(broker, is_now=True)
    assert (refused.state, refused.is_now_refused, refused.groups_behind) == (
        "values-gone",
        True,
        {"users-0": ["billing"]},
    )
    assert refused.certificate["overrides"] == []
    assert len(records_of_key(data_of(broker), "users", KEY)) == 1
    done = await broker.erase_now(refused.id, is_confirmed=True)
    assert (done.id, done.state, done.is_now_refused) == (refused.id, "key-gone", False)
    assert done.certificate["overrides"][0]["groups_that_had_not_passed_it"] == ["billing"]
    assert records_of_key(data_of(broker), "users", KEY) == []


async def test_now_needs_no_word_when_all_groups_have_passed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nobody to be listed."""
    await create(broker)
    write(broker, (KEY, PERSON))
    await groups_at(broker, monkeypatch, 2)
    assert (await erase(broker, is_now=True)).state == "key-gone"


async def test_over_http_now_is_confirmed_by_a_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer names the groups; the second request, about the same erasure, says that they are known."""
    async with Broker(config(tmp_path, **{"diamant.http.listen": "127.0.0.1:0"}), env=env_at()) as broker:
        await create(broker)
        write(broker, (KEY, PERSON))
        await groups_at(broker, monkeypatch, 1)
        fields = {"key": KEY.decode(), "topics": ["users"], "reason": "r", "now": True}
        first = (await ask(broker, "POST", "/v1/erase?wait_ms=20000", fields)).json
        assert (first["state"], first["is_now_refused"]) == ("values-gone", True)
        assert first["groups_behind"] == {"users-0": ["billing"]}
        path = f"/v1/erase/{first['id']}/now?wait_ms=20000"
        unsaid = (await ask(broker, "POST", path, {})).json
        assert (unsaid["certificate"], unsaid["is_now_refused"]) == (first["certificate"], True)
        assert (unsaid["groups_behind"], unsaid["next_due_ms"]) == (first["groups_behind"], first["next_due_ms"])
        second = (await ask(broker, "POST", path, {"confirm_groups_behind": True})).json
        assert (second["id"], second["state"], second["is_now_refused"]) == (first["id"], "key-gone", False)
        listed = (await ask(broker, "GET", "/v1/certificates")).json
        assert [one["id"] for one in listed["certificates"]] == [first["id"]] * 2
        assert listed["unfinished"] == []


# -- full disks ------------------------------------------------------------------------------------------------------------------


async def test_a_disk_that_is_full_before_the_intent_leaves_everything_as_it_is(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the intent cannot be written nothing else is."""
    await create(broker)
    write(broker, (KEY, PERSON))
    monkeypatch.setattr(erasing, "write_intent", no_space)
    with pytest.raises(VerbError, match="No space left"):
        await erase(broker)
    assert list(data_of(broker).glob("diamant-erasure-*")) == []
    assert len(records_of_key(data_of(broker), "users", KEY)) == 1
    assert broker.erasures.unfinished() == []


def fill_up(stage: str, broker: Broker, patched: pytest.MonkeyPatch) -> None:
    """Leave no space from a stage on."""
    if stage == "tombstone":
        real_append = RealFile.append

        def append(file: RealFile, *buffers: Any) -> None:
            if "/users-0/" in file.path and file.path.endswith(".log"):
                no_space()
            real_append(file, *buffers)

        patched.setattr(RealFile, "append", append)
    elif stage == "cleaning":
        real_create = type(broker.env).create_new

        def create_new(env: Any, path: str) -> Any:
            return no_space() if path.endswith(".cleaned") else real_create(env, path)

        patched.setattr(type(broker.env), "create_new", create_new)
    elif stage == "certificate":
        real_atomically = type(broker.env).write_atomically

        def write_atomically(env: Any, path: str, *arguments: Any, **options: Any) -> None:
            if "diamant-erasure" in path:
                no_space()
            real_atomically(env, path, *arguments, **options)

        patched.setattr(type(broker.env), "write_atomically", write_atomically)
    else:
        real_write = intents.write_intent
        calls: list[Any] = []

        def write_intent(*arguments: Any) -> None:
            calls.append(arguments)
            if len(calls) > int(stage):
                no_space()
            real_write(*arguments)

        patched.setattr(erasing, "write_intent", write_intent)


@pytest.mark.parametrize("stage", ["1", "2", "3", "tombstone", "cleaning", "certificate"])
async def test_a_disk_that_is_full_in_the_middle_gives_no_certificate_and_the_erasure_goes_on(
    broker: Broker, stage: str
) -> None:
    """Whichever file it is that cannot be written: an error that says so, and once there is space again it is finished."""
    await create(broker)
    write(broker, (KEY, PERSON))
    fill(broker)
    with pytest.MonkeyPatch.context() as patched:
        fill_up(stage, broker, patched)
        if stage == "cleaning":
            assert (await erase(broker)).state == "not-certified"
        else:
            with pytest.raises(VerbError, match="No space left") as raised:
                await erase(broker)
            assert KEY.decode() not in str(raised.value)
        # What could not be written down after a certificate does not make it untrue.
        found = certificates_in(data_of(broker), "*")
        assert [path.name.split(".")[1] for path in found] == {"3": ["values-gone"], "cleaning": ["not-certified"]}.get(
            stage, []
        )
    assert len(broker.erasures.unfinished()) == 1
    move_to(broker, START_MS + RETRY_MS)
    await wait_until(lambda: certificates_in(data_of(broker), "values-gone") != [] and not broker.erasures.is_at_work)
    values = [one.value for one in records_of_key(data_of(broker), "users", KEY)]
    assert values == [None]


async def test_a_topic_that_stops_being_compacted_meanwhile_is_told(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is certified, and the certificate has the reason."""
    await create(broker)
    write(broker, (KEY, PERSON))

    async def compact(*_arguments: Any, **_options: Any) -> None:
        raise NotPossible("users is not compacted")

    monkeypatch.setattr(type(broker), "compact", compact)
    erasure = await erase(broker)
    assert (erasure.state, erasure.certificate["claims"]) == ("not-certified", [])
    assert [one["not_compacted"] for one in erasure.certificate["done"]] == ["users is not compacted"]
    assert len(broker.erasures.unfinished()) == 1


# -- a key in the data directory -------------------------------------------------------------------------------------------------


def made_of(path: Path) -> list[str]:
    """Which files of a key there are, links followed."""
    return [one for one in (str(path), f"{path}.secret") if os.path.exists(one)]


@pytest.mark.parametrize("place", ["inside", "linked directory", "linked secret"])
async def test_a_key_or_secret_inside_of_the_data_directory_is_refused(tmp_path: Path, place: str) -> None:
    """Whatever links lead there: nothing is erased and no key is made, and the error says where it may not lie."""
    data, keys = tmp_path / "data", tmp_path / "keys"
    data.mkdir()
    path = {"inside": data / "keys" / "certificate.key"}.get(place, keys / "certificate.key")
    if place == "linked directory":
        keys.symlink_to(data, target_is_directory=True)
    elif place == "linked secret":
        keys.mkdir()
        (keys / "certificate.key.secret").symlink_to(data / "secret")
    async with Broker(config(tmp_path, **{"diamant.certificate.key.file": str(path)}), env=env_at()) as broker:
        await create(broker)
        write(broker, (KEY, PERSON))
        with pytest.raises(NotPossible, match=r"nothing was changed: .* is inside of the data directory") as raised:
            await erase(broker)
        assert "diamant.certificate.key.file" in str(raised.value)
        assert ".secret is inside" in str(raised.value) or place != "linked secret"
        with pytest.raises(NotPossible, match="is inside of the data directory"):
            await broker.erasures.public_key()
        assert len(records_of_key(data, "users", KEY)) == 1
        assert made_of(path) == []


async def test_a_key_beside_the_data_directory_is_used(tmp_path: Path) -> None:
    """A name that only begins like that of the directory is not inside of it."""
    path = tmp_path / "data-keys" / "certificate.key"
    async with Broker(config(tmp_path, **{"diamant.certificate.key.file": str(path)}), env=env_at()) as broker:
        await create(broker)
        assert (await erase(broker)).state == "key-gone"
    assert path.exists()
