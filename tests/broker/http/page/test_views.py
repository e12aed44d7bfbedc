"""The views without a browser: content, escaping and access."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp
import pytest
from confluent_kafka import Consumer

from diamant.broker.broker import Broker
from diamant.broker.client.kafka_client import KafkaClient
from diamant.broker.client.kafka_group import KafkaGroup
from diamant.broker.http.page.making.live import MAX_STREAMS
from diamant.broker.http.page.making.shown_records import text_of
from diamant.broker.http.page.making.strip_svg import make_strip
from diamant.broker.http.page.views.one_topic import GHOST_S, Shrinking
from diamant.broker.operations.compactions.compactions import CompactionFailed
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.explain.scans import MAX_RECORDS
from diamant.cleaner.service.metrics import RoundStatus
from diamant.progress import Reading
from diamant.storage.directory.log_directory import LoadFailure
from diamant.storage.errors import CorruptLog
from tests.broker.http.test_http_safety import documented_routes

TIMEOUT_S = 60
HOSTILE = "<script>alert('x')</script>\u202e\x00 & \"quoted\""
TOKEN = "0123456789abcdef-secret"


class Found(NamedTuple):
    """A response."""

    status: int
    headers: Any
    text: str


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with a compacted topic of several segments."""
    settings: dict[str, Any] = {"diamant_http_listen": "127.0.0.1:0", "diamant_clock": "manual"}
    async with Broker(data_dir=str(tmp_path / "data"), listen="127.0.0.1:0", **settings) as running:
        await running.create_topic("users", 2, compact=True, internal_segment_bytes=1000, min_cleanable_dirty_ratio=1)
        for number in range(60):
            await running.produce("users", f"v{number}", key=f"k{number % 10}", partition=0)
        yield running


async def get(broker: Broker, path: str, **options: Any) -> Found:
    """Request a path."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        async with session.get(f"{broker.http_url}{path}", **options) as answer:
            return Found(answer.status, answer.headers, await answer.text())


@pytest.mark.parametrize(
    "path", ["/", "/topics", "/topics/users", "/topics/users/0", "/topics/users/0/59", "/topics/x"]
)
async def test_a_view_keeps_to_itself(broker: Broker, path: str) -> None:
    """A view is not cached, not framed, and loads nothing from other sites."""
    found = await get(broker, path)
    assert found.status == (404 if path == "/topics/x" else 200)
    assert found.headers["Content-Type"] == "text/html; charset=utf-8"
    assert found.headers["Cache-Control"] == "no-store"
    policy = found.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert set(re.findall(r'(?:src|href)="([^"]*)"', found.text)) == {
        one for one in re.findall(r'(?:src|href)="([^"]*)"', found.text) if one[:1] in "/?#" and one[:2] != "//"
    }
    for href in re.findall(r'(?:src|href)="(/static[^"]*)"', found.text):
        asset = await get(broker, href)
        assert (asset.status, asset.headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")


async def test_the_list_is_filtered_sorted_and_paged(broker: Broker) -> None:
    """The query decides; invalid values count as missing."""
    for number in range(120):
        await broker.create_topic(f"many-{number:03}")
    names = re.compile(r'<a href="/topics/([\w-]+)">')
    assert names.findall((await get(broker, "/topics?q=MANY-01")).text) == [f"many-{one:03}" for one in range(10, 20)]
    assert names.findall((await get(broker, "/topics?sort=-bytes")).text)[0] == "users"
    assert len(names.findall((await get(broker, "/topics")).text)) == 100
    assert len(names.findall((await get(broker, "/topics?page=2")).text)) == 21
    assert len(names.findall((await get(broker, "/topics?page=999&sort=nonsense")).text)) == 21
    assert names.findall((await get(broker, "/topics?q=%3Cb%3E")).text) == []


async def test_the_superseded_share_of_each_topic_comes_by_itself(broker: Broker) -> None:
    """Topics on the page are counted in the background, and the live part has the shares; others are not read."""
    await broker.create_topic("plain")
    await broker.produce("plain", "v", key="k")
    await broker.produce("users", "v", key="k", partition=1)
    text = unescape((await get(broker, "/topics")).text)
    assert "not counted yet" in text
    async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT_S):
        async with session.get(f"{broker.http_url}/live/topics?q=use") as answer:
            async for line in answer.content:
                if "82 %" in line.decode():
                    break
                broker.services.background_counts()._from_s = 0.0  # as if the pause were over
    assert re.search(r">users</a>.*\n.*>82 %<", (await get(broker, "/topics")).text)
    figures = broker.services.segment_figures()
    assert {topic for topic, _ in figures._sums} == {"users"}
    await broker.compact("users")
    for log in broker.node.topics.by_name["users"].logs.values():
        await figures.count(log)
    row = (await get(broker, "/topics?q=users")).text
    assert re.search(r">0 %<", row)
    assert "at most" not in row


async def test_a_large_partition_is_counted_in_the_background_or_on_request(broker: Broker) -> None:
    """The strip of such a partition is grey and shows the progress; a button counts it at once."""
    figures, counts = broker.services.segment_figures(), broker.services.background_counts()
    figures.unasked_bytes = 100
    counts._from_s = math.inf
    text = (await get(broker, "/topics/users")).text
    assert "Count now" in text
    assert "50 superseded" not in text
    counts._from_s = 0.0
    async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT_S):
        async with session.get(f"{broker.http_url}/live/topics/users?scale=100000") as answer:
            async for line in answer.content:
                if "50 superseded" in line.decode():
                    break
    assert "50 superseded" in (await get(broker, "/topics/users")).text


async def test_names_and_records_are_escaped(broker: Broker) -> None:
    """Keys, values, headers and unknown topic names are escaped."""
    await broker.produce("users", HOSTILE, key=HOSTILE, partition=1, headers={"h": HOSTILE})
    found = await get(broker, "/topics/users/1")
    assert "<script>alert" not in found.text
    assert unescape(found.text).count("<script>alert('x')</script>\\u202e\\x00 & \"quoted\"") == 5
    found = await get(broker, "/topics/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert (found.status, "<script>alert" in found.text) == (404, False)


async def test_commands_in_a_sentence_are_marked(broker: Broker) -> None:
    """Commands between backticks are marked in a terminal; a backtick without a second one stays."""
    missing = "<code>diamant topic list</code> lists those that exist, <code>diamant topic create</code> makes one"
    assert missing in (await get(broker, "/topics/none")).text
    assert f"there is no topic &#39;a`b&#39;: {missing}" in (await get(broker, "/topics/a%60b")).text


async def test_values_as_people_read_them(broker: Broker) -> None:
    """JSON is indented, bytes are hexadecimal, and long values are cut with their remaining size."""
    assert text_of(b'{"a":1}') == '{"a": 1}'
    assert text_of(b'{"a": "%s"}' % (b"x" * 200)).startswith('{\n  "a": "x')
    assert text_of(b"\xff\x00") == "ff 00"
    assert text_of(b"{no json") == "{no json"
    await broker.create_topic("large")
    await broker.produce("large", "x" * 200_000)
    await broker.produce("large", None, key="k")
    text = (await get(broker, "/topics/large/0")).text
    assert "x" * 65536 in text
    assert "x" * 65537 not in text
    assert "134 kB of 200 kB not shown" in text
    assert "null: a tombstone" in text
    found = await get(broker, "/topics/large/0/0/value")
    assert (found.text, found.headers["Content-Disposition"]) == ("x" * 200_000, 'attachment; filename="large-0-0.bin"')
    assert {(await get(broker, f"/topics/large/0/{offset}/value")).status for offset in (1, 2)} == {404}


async def test_records_from_an_offset_and_a_time(broker: Broker) -> None:
    """The first record is at or after it; beyond the end there are none."""
    first = re.compile(r'id="p0-o(\d+)"')
    assert first.findall((await get(broker, "/topics/users/0?offset=17")).text)[0] == "17"
    assert len(first.findall((await get(broker, "/topics/users/0")).text)) == 50
    assert first.findall((await get(broker, "/topics/users/0?offset=999")).text) == []
    assert first.findall((await get(broker, "/topics/users/0?at=2000-01-01")).text)[0] == "0"
    assert "No record has this timestamp or a later one" in (await get(broker, "/topics/users/0?at=2999-01-01")).text
    assert "is not a time" in (await get(broker, "/topics/users/0?at=soon")).text
    await broker.compact("users")
    kept = first.findall((await get(broker, "/topics/users/0")).text)
    assert 10 <= len(kept) < 50


async def test_the_records_of_all_partitions_come_newest_first(broker: Broker) -> None:
    """A page has fifty records, and a link to older ones; an invalid position counts as none."""
    for number in range(60):
        await broker.produce("users", f"w{number}", key="k", partition=1)
    shown = re.compile(r'id="p(\d)-o(\d+)"')
    text = (await get(broker, "/topics/users/records")).text
    assert shown.findall(text) == [("1", str(offset)) for offset in range(59, 9, -1)]
    older = re.search(r'rel="next" href="([^"]*)"', text)
    assert older is not None
    text = (await get(broker, f"/topics/users/records{older[1]}")).text
    assert shown.findall(text) == [("1", str(offset)) for offset in range(9, -1, -1)] + [
        ("0", str(offset)) for offset in range(59, 19, -1)
    ]
    for path in ("?before=0:0,1:0", "?before=x", "?before=9:9,0:-1,:"):
        found = await get(broker, f"/topics/users/records{path}")
        assert (found.status, len(shown.findall(found.text))) == (200, 0 if path.startswith("?before=0") else 50)
    assert (await get(broker, "/topics/none/records")).status == 404


@pytest.mark.parametrize("place", [8, 16, 62])
async def test_a_damaged_batch_does_not_end_the_list(broker: Broker, place: int) -> None:
    """A batch with a wrong length, magic or records is named in words, and the list continues with the next sound batch."""
    log = broker.node.topics.by_name["users"].logs[0]
    segment = log.segments[0]
    position, _ = list(segment.scan_from(0))[3]
    file = log.env.open(segment.path)
    file.pwrite(b"\xff\xfe\xfd", position + place)
    file.close()
    for path in ("/topics/users/0", "/topics/users/records?before=0:20"):
        text = unescape((await get(broker, path)).text)
        assert re.search(
            r"Offset 3 cannot be read, consumers stop here: [^<]*\(0{20}\.log at byte \d+\)\. <a [^>]*offset=4",
            text,
        ), path
        offsets = [int(one) for one in re.findall(r'id="p0-o(\d+)"', text)]
        assert 3 not in offsets
        assert {2, 4, 19} <= {*offsets}
    fate = await get(broker, "/topics/users/0/3")
    assert (fate.status, "its segment is damaged" in fate.text) == (409, True)


async def test_the_preview_of_an_erasure_counts_records_that_are_not_listed(broker: Broker) -> None:
    """The counts by status add up to the number of records, also where a key has more than are explained one by one."""
    await asyncio.gather(*(broker.produce("users", "v", key="many", partition=1) for _ in range(MAX_RECORDS + 5)))
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{broker.http_url}/forget/key", json={"key": "many"}) as answer:
            text = await answer.text()
    assert '<td class="num" data-label="Records">1,005</td>' in text
    assert '<td class="wrap" data-label="By status">999 superseded, 1 live, 5 not listed</td>' in text


async def test_a_record_is_produced(broker: Broker) -> None:
    """A form produces a record with key, headers and partition, or a tombstone; invalid input is refused."""
    async with aiohttp.ClientSession() as session:

        async def post(path: str, **fields: Any) -> tuple[int, Any]:
            async with session.post(f"{broker.http_url}{path}", json=fields) as answer:
                return answer.status, await answer.json()

        written = {"topic": "users", "partition": 1, "offset": 0}
        headers = {"trace": "7", "none": None, "raw": {"hex": "00ff"}}
        key = {"base64": "AP8="}
        assert await post("/v1/produce", topic="users", partition=1, key=key, value="v", headers=headers) == (
            200,
            written,
        )
        assert await post("/v1/produce", topic="users", partition=1, key="k", tombstone=True) == (
            200,
            {**written, "offset": 1},
        )
        found = [record async for number, record in broker.records("users") if number == 1]
        assert [(one.key, one.value) for one in found] == [(b"\0\xff", b"v"), (b"k", None)]
        assert [tuple(one) for one in found[0].headers] == [("trace", b"7"), ("none", None), ("raw", b"\0\xff")]
        for status, fields in (
            (404, {"topic": "none"}),
            (404, {"topic": "users", "partition": 2}),
            (400, {"topic": "users", "key": "k", "value": "v", "tombstone": True}),
            (400, {"topic": "users", "key": "k", "headers": {"h": 1}}),
            (400, {"topic": "users", "key": "k", "value": {"hex": "x"}}),
            (400, {"topic": "users"}),  # a compacted topic takes no record without a key
        ):
            assert (await post("/v1/produce", **fields))[0] == status, fields
        assert "topics/none" not in "".join(broker.node.topics.by_name)


async def test_the_offsets_of_a_group_are_reset(broker: Broker) -> None:
    """Offsets are reset to the start, the end, an offset, a distance from the end or from the present offset, or a time; not of
    a group with members or without a name.
    """
    await asyncio.to_thread(commit, broker.bootstrap_servers)
    async with aiohttp.ClientSession() as session:

        async def post(group: str = "readers%2F1", **fields: Any) -> tuple[int, Any]:
            async with session.post(f"{broker.http_url}/v1/groups/{group}/offsets", json=fields) as answer:
                return answer.status, await answer.json()

        for to, after in (
            ("start", 0),
            ("end", 60),
            ("17", 17),
            ("-10", 50),
            ("+5", 55),
            ("+99", 60),
            ("@2000-01-01", 0),
        ):
            before = broker.services.groups().groups["readers/1"].offsets.get("users", 0)
            status, found = await post(topic="users", partition=0, to=to, validate_only=True)
            assert (status, found["offsets"][0]["after"], found["is_changed"]) == (200, after, False)
            assert broker.services.groups().groups["readers/1"].offsets.get("users", 0) == before
            status, found = await post(topic="users", partition=0, to=to)
            assert (status, found["offsets"][0]["after"], found["is_changed"]) == (200, after, True)
        status, found = await post(topic="users", to="end")
        assert [(one["partition"], one["before"], one["after"]) for one in found["offsets"]] == [
            (0, 0, 60),
            (1, None, 0),
        ]
        text = (await get(broker, "/groups/readers%2F1")).text
        assert "Classic group, Empty, lag 0." in text
        for status, group, fields in (
            (404, "none", {"topic": "users", "to": "end"}),
            (404, "readers%2F1", {"topic": "none", "to": "end"}),
            (400, "readers%2F1", {"topic": "users", "to": "soon"}),
            (400, "readers%2F1", {"topic": "users", "to": "@soon"}),
        ):
            assert (await post(group, **fields))[0] == status, fields
        consumer = await asyncio.to_thread(joined, broker.bootstrap_servers)
        status, found = await post(topic="users", to="end")
        assert (status, "active members" in found["error"]) == (409, True)
        await asyncio.to_thread(consumer.close)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_partitions_without_a_commit_are_shown_as_kafkas_tools_show_them(broker: Broker, protocol: str) -> None:
    """An owned partition has an owner and no lag; the lag of the others does not pass for that of the group."""
    await asyncio.to_thread(commit, broker.bootstrap_servers)
    consumer = await asyncio.to_thread(joined, broker.bootstrap_servers, **{"group.protocol": protocol})
    listed, text = (await get(broker, "/groups")).text, (await get(broker, "/groups/readers%2F1")).text
    assert "lag 57, and 1 partition without a committed offset." in text
    rows = re.findall(r"<tr><td><a [^>]*>users-\d.*?</tr>", text)
    assert [re.sub("<[^>]+>", " ", row).split()[:4] for row in rows] == [
        ["users-0", "3", "60", "57"],
        ["users-1", "–", "0", "–"],
    ]
    assert all("rdkafka-" in row or protocol == "consumer" for row in rows)
    assert "and 1 partition without a commit" in listed
    metrics = (await get(broker, "/metrics")).text
    assert 'diamant_consumergroup_uncommitted_partitions{consumergroup="readers/1"} 1.0' in metrics
    await asyncio.to_thread(consumer.close)
    assert "uncommitted_partitions{" not in (await get(broker, "/metrics")).text


def joined(bootstrap_servers: str, **settings: str) -> Consumer:
    """Return a member of the group."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "readers/1"} | settings)
    consumer.subscribe(["users"])
    while not consumer.assignment():
        consumer.poll(1)
    return consumer


def commit(bootstrap_servers: str) -> None:
    """Commit an offset for a group."""
    with KafkaClient(bootstrap_servers, timeout_s=60) as client:
        KafkaGroup(client, "readers/1").commit({("users", 0): 3})


async def test_the_fate_of_a_record(broker: Broker) -> None:
    """All records of its key are listed, with the reasons in words."""
    found = await get(broker, "/topics/users/0/5")
    assert re.search(r"superseded</strong> by <a [^>]*>15</a>", found.text)
    assert (await get(broker, "/topics/users/0/99")).status == 404
    assert (await get(broker, "/topics/users/0/x")).status == 409
    assert (await get(broker, "/topics/users/7")).status == 404


async def test_strips_follow_what_happens(broker: Broker) -> None:
    """A stream sends the strips at each change, and ends with the topic."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT_S):
        async with session.get(f"{broker.http_url}/live/topics/users?scale=100000") as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"

            async def until(text: str) -> None:
                async for line in answer.content:
                    if text in line.decode():
                        return
                raise AssertionError("the stream has ended")

            await until("50 superseded")
            await broker.compact("users")
            await until("730 bytes in 6 segments")
            await until("A round has freed")
            await broker.produce("users", "new", key="k99", partition=1)
            await until("1 live")
            await delete_topics(broker.node.topics, ["users"])
            await until("event: notice")
        assert "there is no topic 'users'" in (await get(broker, "/live/topics/users")).text


async def test_a_setting_is_explained_before_it_is_changed(broker: Broker) -> None:
    """The preview says what retention would remove; a refusal has Kafka's words."""
    assert "How long a compacted topic keeps a tombstone" in (await get(broker, "/topics/users/settings")).text
    async with aiohttp.ClientSession() as session:

        async def preview(name: str, value: str) -> tuple[int, str]:
            body = {"name": name, "value": value}
            async with session.post(f"{broker.http_url}/topics/users/settings", json=body) as answer:
                return answer.status, unescape(await answer.text())

        await broker.clock.advance("1d")
        status, text = await preview("cleanup.policy", "delete")
        assert (status, "would remove none" in text, "no longer compacted" in text) == (200, True, True)
        async with session.post(
            f"{broker.http_url}/v1/configs", json={"topic": "users", "set": {"retention.ms": "60000"}}
        ):
            pass
        status, text = await preview("cleanup.policy", "delete")
        assert re.search(r"Retention would remove \d+ segments \(.*\) at its next check. This cannot be undone", text)
        assert "diamant topic alter users --config cleanup.policy=delete" in text
        status, text = await preview("retention.ms", "soon")
        assert (status, "soon for configuration retention.ms" in text) == (400, True)
        assert (await preview("no.such", "1"))[0] == 400
        assert broker.node.topics.by_name["users"].logs[0].config.is_compacted


async def test_the_history_has_the_last_rounds(broker: Broker) -> None:
    """Each round has its removals by reason; without rounds the page says so."""
    assert "No rounds since the broker started" in (await get(broker, "/history")).text
    await broker.compact("users")
    await broker.services.history().sample()
    for path in ("/history", "/history?topic=users"):
        text = (await get(broker, path)).text
        assert re.search(r'href="/topics/users#p0">users-0</a>.*<td class="num" data-label="superseded">50</td>', text)


async def test_a_segment_in_quarantine_is_shown_as_such(broker: Broker) -> None:
    """The strip and the overview have its file and position; other segments are cleaned."""
    log = broker.node.topics.by_name["users"].logs[0]
    file = log.env.open(log.segments[1].path)
    file.pwrite(b"\xff\xff", 70)
    file.close()
    with pytest.raises(CompactionFailed, match="left as it is"):
        await broker.compact("users")
    text = unescape((await get(broker, "/topics/users")).text)
    assert re.search(r'<p class="trouble">In quarantine: [^<]*\d{20}\.log', text)
    assert len(re.findall(r'<g [^>]*class="quarantined">', text)) == 1
    assert re.search("<td[^>]*>(cleaned|dirty), in quarantine: it cannot be read</td>", text)
    overview = unescape((await get(broker, "/")).text)
    assert re.search(r'href="/topics/users#p0">users-0</a> is only partly cleaned: [^<]*\d{20}\.log', overview)


async def test_a_partition_in_trouble_says_so(broker: Broker) -> None:
    """One takes no writes, another could not be opened."""
    broker.node.topics.by_name["users"].logs[0].write_failure = OSError("no space left")
    broker.node.directory.failures.append(LoadFailure("users", 7, CorruptLog("/data/users-7", 0, "a hole")))
    text = (await get(broker, "/topics/users")).text
    assert "This partition refuses writes: no space left" in text
    assert re.search(r"Partition 7 is offline:</strong> .*a hole", text)


async def test_streams_are_bounded_and_end_with_the_broker(broker: Broker) -> None:
    """Beyond the limit a notice gives the reason; a stop waits for no stream."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT_S), AsyncExitStack() as opened:
        answers = [
            await opened.enter_async_context(session.get(f"{broker.http_url}/live/overview"))
            for _ in range(MAX_STREAMS)
        ]
        assert {await answer.content.readline() for answer in answers} == {b"retry: 1000\n"}
        refused = await get(broker, "/live/overview")
        assert (refused.status, "event: notice" in refused.text, "other pages" in refused.text) == (200, True, True)
        await broker.stop()
        for answer in answers:
            async for _ in answer.content:
                pass


async def test_the_token_keeps_records_from_view(tmp_path: Path) -> None:
    """A form takes the token; a cookie out of reach of scripts and other sites keeps it."""
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    settings: dict[str, Any] = {"diamant_http_listen": "127.0.0.1:0", "diamant_http_token_file": str(path)}
    async with Broker(data_dir=str(tmp_path / "data"), listen="127.0.0.1:0", **settings) as broker:
        await broker.create_topic("users", compact=True)
        await broker.produce("users", "secret", key="k")
        refused = await get(broker, "/topics/users/0")
        assert (refused.status, "secret" in refused.text, 'type="password"' in refused.text) == (401, False, True)
        assert (await get(broker, "/topics/users")).status == 200
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            login = f"{broker.http_url}/login"
            async with session.post(login, json={"token": "wrong-wrong-wrong-wrong"}) as answer:
                assert (answer.status, "Set-Cookie" in answer.headers) == (403, False)
            async with session.post(login, data={"token": TOKEN}) as answer:
                assert answer.status == 415  # a form of another site
            async with session.post(login, json={"token": TOKEN}) as answer:
                assert answer.status == 200
                cookie = answer.headers["Set-Cookie"]
                assert "HttpOnly" in cookie
                assert "SameSite=Strict" in cookie
            async with session.get(f"{broker.http_url}/topics/users/0") as answer:
                assert "secret" in await answer.text()
            async with session.post(f"{broker.http_url}/v1/compact", json={"topic": "users"}) as answer:
                assert answer.status == 200


async def test_a_strip_shows_the_round_in_progress(broker: Broker) -> None:
    """Segments of the round are hatched, its outputs are drawn below, and freed space is outlined."""
    log = broker.node.directory.logs["users", 0]
    bases = [segment.base_offset for segment in log.segments]
    round_ = RoundStatus("users", 0, "process", Reading("", 0, log.size, "bytes"), 0, 0, bases[1], bases[3])
    strip = make_strip(log, None, None, round_, 0, log.size, 0, [100, 50], log.size + 200)
    assert [one.state.endswith("in the current round") for one in strip.segments[:4]] == [False, True, True, False]
    assert ["in-round" in one.classes for one in strip.bins[:4]] == [False, True, True, False]
    assert strip.reading == (strip.bins[1].x, pytest.approx(strip.bins[3].x - strip.bins[1].x, abs=0.02))
    assert strip.written_bytes == 150
    assert strip.outputs[0][1] == pytest.approx(2 * strip.outputs[1][1], abs=0.02)
    assert strip.ghost_text.startswith("A round has freed 200 bytes of ")


def test_freed_space_is_that_of_the_whole_round() -> None:
    """The size before a round is kept while the round exchanges one group of segments after another, and a while after it."""
    shrinking = Shrinking()

    def before(size: int, at_s: float, *, is_in_progress: bool) -> dict[int, int]:
        log: Any = SimpleNamespace(topic="users", partition=0, size=size)
        return shrinking.before([log], lambda _: is_in_progress, at_s)

    assert before(1000, 0, is_in_progress=True) == {}
    assert before(700, 1, is_in_progress=True) == {0: 1000}
    assert before(700, 10 * GHOST_S, is_in_progress=True) == {0: 1000}
    assert before(300, 20 * GHOST_S, is_in_progress=True) == {0: 1000}
    assert before(300, 20.9 * GHOST_S, is_in_progress=False) == {0: 1000}
    assert before(300, 21 * GHOST_S, is_in_progress=False) == {}


async def test_every_offered_call_has_the_fields_of_its_route(broker: Broker) -> None:
    """A button sends, and shows as curl, only fields that the route has."""
    known = {(row.method, row.path): {param.name for param in row.fields} for row in await documented_routes(broker)}
    offered = set()
    for view in ("/topics/users", "/topics/users/records", "/topics/users/settings", "/groups", "/forget"):
        text = unescape((await get(broker, view)).text)
        for method, path, body in re.findall(
            r"curl(?: -X (\w+))? http://[^/]+(/v1/[\w/]+) -H \S+ \S+ -d '(\{.*?\})'", text
        ):
            fields = known.get((method or "POST", path))
            if fields is not None:  # paths with names in them are asked for elsewhere
                offered.add(path)
                assert json.loads(body).keys() <= fields, (view, path, body)
    assert {"/v1/compact", "/v1/roll"} <= offered
