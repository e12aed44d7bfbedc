"""Topics whose names are too long for those of the directories that are set aside: these have the beginning only."""

from __future__ import annotations

import shutil

from diamant.broker.broker import Broker
from diamant.broker.topics.deletion import delete_topics
from diamant.storage import names
from tests.broker.erasure.cases import KEY, PERSON, create, data_of, erase, fill, write
from tests.cleaner.evidence.scan.naive_scanner import files_with

LONG = "u" * 249
TWIN = LONG[:-1] + "x"


async def test_what_waits_to_be_deleted_of_a_topic_with_a_long_name_goes_at_once(broker: Broker) -> None:
    """Also with the name of a topic that begins alike: that one is to be deleted as well, a little later."""
    await create(broker, LONG)
    write(broker, (KEY, PERSON), topic=LONG, codec=4)
    fill(broker, topic=LONG)
    await delete_topics(broker.node.topics, [LONG])
    (doomed,) = data_of(broker).glob("u*-delete")
    assert len(doomed.name) == names.MAX_NAME_LENGTH
    await create(broker, TWIN)
    write(broker, (KEY, PERSON + b" again"), topic=TWIN)
    fill(broker, topic=TWIN)
    erasure = await erase(broker, topics=[TWIN])
    assert (erasure.state, files_with(data_of(broker), PERSON)) == ("values-gone", [])
    assert not doomed.exists()


async def test_a_directory_that_was_set_aside_with_a_shortened_name_may_be_of_any_topic(broker: Broker) -> None:
    """Nothing is certified as long as a value of the key is in one, whoever it was of."""
    await create(broker, LONG)
    write(broker, (KEY, PERSON), topic=LONG, codec=4)
    fill(broker, topic=LONG)
    stray = data_of(broker) / names.stray_dir_name(LONG, 0)
    shutil.copytree(data_of(broker) / f"{LONG}-0", stray)
    refused = (await erase(broker, topics=[LONG])).certificate
    assert refused["state"] == "not-certified"
    assert refused["not_certified"][0]["problems"][0]["file"].startswith(stray.name)
    shutil.rmtree(stray)
    assert (await erase(broker, topics=[LONG])).state == "values-gone"


def test_whose_a_directory_that_was_set_aside_may_be() -> None:
    """By its whole name, or by its beginning where that is all there is room for."""
    for make in (names.delete_dir_name, names.stray_dir_name):
        assert names.may_be_set_aside_of(make(LONG, 3), LONG)
        assert names.may_be_set_aside_of(make(LONG, 3), TWIN)
        assert names.may_be_set_aside_of(make("users", 3), "users")
        assert not names.may_be_set_aside_of(make("users", 3), "users-2")
        assert not names.may_be_set_aside_of(make("u", 3), LONG)
        assert not names.is_shortened(make("users", 0))
    assert not names.may_be_set_aside_of("notes-delete", "notes")
