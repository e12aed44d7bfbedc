"""Measures the page: `python bench/page.py [views cold open produce load segment]`, with Chromium driven by Playwright.

views     from the beginning of a navigation to the first contentful paint, medians of five, with 10,004 partitions
cold      the same for the first view of a broker that has just been started, five starts
open      processor time of the broker without a page and with one open
produce   one message at a time without and with five open pages, in turns
load      a log of small records, written as quickly as the machine can, with its page open
segment   views of a segment of 1 GB in batches of one record
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

from client import PRODUCE, Client, batches_of, frame_of, produce_of
from playwright.sync_api import Browser, Page, sync_playwright
from processes import RunningBroker, cpu_seconds, resident_mb, running

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record

HTTP_OFFSET = 5_000
COMMAND = (
    f"exec {sys.executable} -m diamant start --listen 127.0.0.1:{{port}} --data {{data}}"
    " --set diamant.http.listen=127.0.0.1:$(({port} + 5000))"
)
TURNS = 5
OPEN_S = 10
MANY = {"segments": 1, "users": 2, "plain": 1}
RECORDS = 10_000
"""In each batch of `load`."""
PIPELINED = 8
ONE_RECORD_BYTES = 3_200


@contextlib.contextmanager
def broker_and_browser() -> Iterator[tuple[RunningBroker, Browser, str]]:
    """A broker of its own, and the address of its page."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with running(COMMAND, 1) as broker, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield broker, browser, f"http://127.0.0.1:{broker.port + HTTP_OFFSET}"
        browser.close()


def painted_ms(page: Page, url: str) -> float:
    """How long a view takes to its first contentful paint."""
    page.goto(url)
    script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
    while (found := page.evaluate(script)) is None:
        page.wait_for_timeout(10)
    return float(found)


def fill(broker: RunningBroker) -> None:
    """103 topics with 10,004 partitions, one of them with 1,000 segments."""
    client = Client(broker.port)
    for number in range(100):
        client.create(f"topic-{number:03}", 100, cleanup_policy="compact")
    client.create("segments", 1, cleanup_policy="compact", internal_segment_bytes="12000")
    client.create("users", 2, cleanup_policy="compact")
    client.create("plain", 1)
    client.produce("segments", batches_of(100, 100_000, 10_000))
    client.produce("users", batches_of(100, 20_000), 2)
    for number in range(100):
        client.produce(f"topic-{number:03}", batches_of(100, 10))


def views() -> None:
    """The views of a warm broker."""
    with broker_and_browser() as (broker, browser, url):
        fill(broker)
        page = browser.new_page()
        for path in ("/", "/topics", "/topics/segments", "/topics/users/0", "/topics/users/settings", "/groups", "/forget",
                     "/faults", "/history"):  # fmt: skip
            painted_ms(page, url + path)
            found = [painted_ms(page, url + path) for _ in range(TURNS)]
            print(f"{path}: {statistics.median(found):.0f} ms ({min(found):.0f} to {max(found):.0f})", flush=True)


def cold() -> None:
    """The first view of all."""
    found, cpu = [], []
    for _ in range(TURNS):
        with broker_and_browser() as (broker, browser, url):
            time.sleep(2)
            page = browser.new_page()
            page.goto("about:blank")
            before_s, before_mb = cpu_seconds(broker.pid), resident_mb(broker.pid)
            found.append(painted_ms(page, url))
            cpu.append(cpu_seconds(broker.pid) - before_s)
            after_mb = resident_mb(broker.pid)
    print(
        f"first view: {statistics.median(found):.0f} ms ({min(found):.0f} to {max(found):.0f}), "
        f"{statistics.median(cpu):.2f} s of a processor, {before_mb:.1f} MB before, {after_mb:.1f} MB after"
    )


def open_pages() -> None:
    """The share of a core that an open page takes."""
    with broker_and_browser() as (broker, browser, url):
        fill(broker)
        page = browser.new_page()
        painted_ms(page, url + "/history")  # all is imported
        painted_ms(page, url + "/topics/segments")
        for path in ("about:blank", url + "/", url + "/topics", url + "/topics/segments"):
            page.goto(path)
            time.sleep(2)
            before_s = cpu_seconds(broker.pid)
            time.sleep(OPEN_S)
            print(f"{path}: {100 * (cpu_seconds(broker.pid) - before_s) / OPEN_S:.2f} % of a core", flush=True)


def produce() -> None:
    """Latencies with and without open pages, in turns."""
    with broker_and_browser() as (broker, browser, url):
        client = Client(broker.port)
        client.create("latency", 1, cleanup_policy="compact")
        frame = frame_of(PRODUCE, produce_of("latency", 0, batches_of(100, 1)[0]))
        found: dict[int, list[tuple[float, float]]] = {0: [], 5: []}
        for _ in range(TURNS):
            for count, turns in found.items():
                pages = [browser.new_page() for _ in range(count)]
                for number, page in enumerate(pages):
                    page.goto(url + ("/topics/latency" if number % 2 else "/"))
                time.sleep(1)
                took_ms = []
                end_s = time.perf_counter() + 5
                while time.perf_counter() < end_s:
                    began_s = time.perf_counter()
                    client.socket.sendall(frame)
                    client.receive(PRODUCE)
                    took_ms.append((time.perf_counter() - began_s) * 1000)
                cuts = statistics.quantiles(took_ms, n=100)
                turns.append((cuts[49], cuts[98]))
                for page in pages:
                    page.close()
        for count, turns in found.items():
            medians, p99 = [one for one, _ in turns], [one for _, one in turns]
            print(
                f"{count} pages: p50 {statistics.median(medians):.3f} ms, p99 {statistics.median(p99):.2f} ms "
                f"({min(p99):.2f} to {max(p99):.2f})"
            )


def load() -> None:
    """A log that is written as quickly as can be, while its page is open."""
    with broker_and_browser() as (broker, browser, url):
        client = Client(broker.port)
        client.create("quick", 1, cleanup_policy="compact")
        now_ms = time.time_ns() // 1_000_000
        rows = [Record(n, now_ms, b"k%05d" % n, b"v" * 8) for n in range(RECORDS)]
        frame = frame_of(PRODUCE, produce_of("quick", 0, bytes(build_batch(rows, base_offset=0))))
        sent, is_over = [0], threading.Event()

        def write() -> None:
            for _ in range(PIPELINED):
                client.socket.sendall(frame)
            while not is_over.is_set():
                client.read(int.from_bytes(client.read(4), "big"))
                sent[0] += RECORDS
                client.socket.sendall(frame)

        page = browser.new_page()
        page.goto(url + "/topics/quick")
        page.evaluate(
            "window.times = []; new MutationObserver(() => times.push(performance.now())).observe("
            "document.querySelector('#strips'), {childList: true, subtree: true})"
        )
        writing = threading.Thread(target=write)
        writing.start()
        time.sleep(3)
        before, cpu_s, began_s = sent[0], cpu_seconds(broker.pid), time.perf_counter()
        page.evaluate("times.length = 0")
        page.wait_for_timeout(20_000)
        took_s = time.perf_counter() - began_s
        rate = (sent[0] - before) / took_s
        cpu = (cpu_seconds(broker.pid) - cpu_s) / took_s
        times = page.evaluate(
            "times.map((time) => Math.round(time / 100)).filter((time, at, all) => time !== all[at - 1])"
        )
        gaps = [(after - earlier) / 10 for earlier, after in pairwise(times)] or [20.0]
        other = browser.new_page()
        view_ms = painted_ms(other, url + "/topics/quick")
        is_over.set()
        writing.join()
        for _ in range(PIPELINED):
            assert client.is_acknowledged()
        other.reload()
        assert f"log end offset {sent[0] + PIPELINED * RECORDS:,}" in other.locator("#p0").inner_text().replace(
            "\u202f", ","
        )
        print(
            f"{rate:,.0f} records/s in batches of {RECORDS:,} ({len(frame):,} bytes), {cpu:.2f} cores of the broker; the strips "
            f"came {len(times)} times in {took_s:.0f} s, {max(gaps):.1f} s apart at most; another view in {view_ms:.0f} ms; "
            f"{resident_mb(broker.pid):.0f} MB"
        )


def segment() -> None:
    """A gigabyte of batches of one record each, in one segment."""
    with broker_and_browser() as (broker, browser, url):
        client = Client(broker.port)
        client.create("large", 1, cleanup_policy="compact", segment_bytes=str(2**31 - 1))
        count = 0
        frames = [
            frame_of(PRODUCE, produce_of("large", 0, bytes(build_batch(
                [Record(0, time.time_ns() // 1_000_000, b"k%d" % n, os.urandom(ONE_RECORD_BYTES))], base_offset=0))))
            for n in range(1000)
        ]  # fmt: skip
        while count * (ONE_RECORD_BYTES + 80) < 1 << 30:
            client.socket.sendall(b"".join(frames[:50]))
            for _ in range(50):
                client.read(int.from_bytes(client.read(4), "big"))
            frames = frames[50:] + frames[:50]
            count += 50
        page = browser.new_page()
        for path in ("/topics/large", "/topics/large", f"/topics/large/0?offset={count // 2}"):
            print(f"{count:,} batches: {path}: {painted_ms(page, url + path):.0f} ms", flush=True)
        page.goto(url + "/topics/large")
        began_s, cpu_s = time.perf_counter(), cpu_seconds(broker.pid)
        page.get_by_role("button", name="Count now").click()
        page.get_by_text("Counted.").wait_for(timeout=120_000)
        took = time.perf_counter() - began_s, cpu_seconds(broker.pid) - cpu_s
        print(f"count now: {took[0]:.1f} s, {took[1]:.1f} s of a processor; {resident_mb(broker.pid):.0f} MB")


PARTS = {"views": views, "cold": cold, "open": open_pages, "produce": produce, "load": load, "segment": segment}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
