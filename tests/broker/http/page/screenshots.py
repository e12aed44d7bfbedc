"""Takes the pictures of the page from a demo data set: `make screenshots`.

One of each view, a log before and after a compaction in one picture, and a compaction and an erasure as series of frames.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

from confluent_kafka import Producer
from playwright.sync_api import Browser, Page, sync_playwright

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.client.kafka_client import KafkaClient
from diamant.broker.client.kafka_group import KafkaGroup
from tests.broker.http.page.conftest import find_chromium

SIZE = {"width": 1080, "height": 680}
VIEWS = (
    ("overview", "/", None),
    ("topic", "/topics/customers", None),
    ("topics", "/topics", None),
    ("records", "/topics/customers/0?offset=200", "Why is this record still here, and until when?"),
    ("settings", "/topics/customers/settings", None),
    ("groups", "/groups", None),
    ("faults", "/faults", None),
)
"""Name of the file, path, what is pressed before the picture is taken."""
ROUND_BYTES_PER_S = 700_000
"""Slow enough to be seen, on a busy machine, too."""


def fill(broker: BlockingBroker) -> None:
    """Write a shop's topics, and a group that reads one."""
    rng = random.Random(42)
    settings = {"internal_segment_bytes": 12_000, "min_cleanable_dirty_ratio": 1}
    broker.create_topic("customers", 3, compact=True, **settings)
    broker.create_topic("orders", 6)
    broker.create_topic("prices", 1, compact=True, **settings)
    for number in range(2400):
        customer = min(rng.randrange(400), rng.randrange(400))
        value = f'{{"name": "Customer {customer}", "city": "Prague", "orders": {number}}}'
        broker.produce("customers", None if rng.random() < 0.06 else value, key=f"customer-{customer}")
        if number % 4 == 0:
            broker.produce("orders", f'{{"customer": {customer}, "total": {rng.randrange(10, 200)}}}')
        if number % 10 == 0:
            broker.produce("prices", str(rng.randrange(1, 100)), key=f"article-{rng.randrange(40)}")
    with KafkaClient(broker.bootstrap_servers, timeout_s=60) as client:
        KafkaGroup(client, "billing").commit({("orders", partition): 60 for partition in range(6)})
        KafkaGroup(client, "search-index").commit({("customers", 0): 400, ("customers", 1): 300})


def fill_large(broker: BlockingBroker) -> None:
    """Write a topic whose throttled round takes a few seconds."""
    rng = random.Random(7)
    broker.create_topic("sessions", 1, compact=True, internal_segment_bytes=1_500_000, min_cleanable_dirty_ratio=1)
    for number in range(20_000):
        broker.produce("sessions", f"{number:08}" * 60, key=f"session-{min(rng.randrange(4000), rng.randrange(4000))}")


def picture(data: bytes) -> str:
    """Return a picture as a data address."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def sheet(browser: Browser, frames: Sequence[tuple[str, bytes]], path: Path) -> None:
    """Join frames with captions into one picture, from top to bottom."""
    page = browser.new_page(viewport={"width": SIZE["width"] + 32, "height": 100})
    rows = "".join(f"<h2>{caption}</h2><img src='{picture(data)}'>" for caption, data in frames)
    style = (
        "body { margin: 16px; font: 15px system-ui } h2 { font-size: 17px; margin: 18px 0 6px } img { max-width: 100% }"
    )
    page.set_content(f"<style>{style}</style>{rows}")
    page.screenshot(path=path, full_page=True)
    page.close()
    print(path)


def strips(page: Page) -> bytes:
    """Return the legend and the strips."""
    page.evaluate("scrollTo(0, 0)")
    top, bottom = page.locator(".legend").bounding_box(), page.locator("#strips").bounding_box()
    assert top is not None
    assert bottom is not None
    height = bottom["y"] + bottom["height"] - top["y"]
    return page.screenshot(
        full_page=True, clip={"x": 0, "y": top["y"] - 4, "width": SIZE["width"], "height": height + 8}
    )


def views(page: Page, target: Path) -> None:
    """Take one picture of each view."""
    for name, path, pressed in VIEWS:
        page.goto(path)
        if pressed is not None:
            page.locator(".record summary").first.click()
            page.get_by_text(pressed, exact=True).first.click()
            page.locator(".fate .timeline").first.wait_for()
        page.wait_for_timeout(500)
        page.screenshot(path=target / f"page-{name}.png")
        print(f"{target}/page-{name}.png")


def before_and_after(browser: Browser, page: Page, target: Path) -> None:
    """Picture a log before and after a compaction."""
    page.goto("/topics/customers")
    before = strips(page)
    page.get_by_role("button", name="Compact now").click()
    page.locator(".outcome pre").first.wait_for(state="attached")
    page.wait_for_timeout(2500)  # for the live parts to follow
    sheet(browser, (("Before a compaction", before), ("After it", strips(page))), target / "log-before-after.png")


def erasure(browser: Browser, page: Page, target: Path) -> None:
    """Picture an erasure from the preview to the certificate."""
    page.goto("/forget")
    page.get_by_label("Key", exact=True).fill("customer-42")
    page.get_by_role("button", name="Preview").first.click()
    form = page.locator("form.confirm")
    form.wait_for()
    section = page.locator("section[aria-labelledby=by-key]")
    frames = [("Where the key is, and what would go", section.screenshot())]
    page.screenshot(path=target / "page-forget.png")
    form.get_by_label("Reason").fill("The customer asks to be forgotten")
    form.get_by_label("Case number").fill("case-7")
    form.get_by_role("checkbox").check()
    frames.append(("Its figures are repeated and confirmed", form.screenshot()))
    form.get_by_role("button", name="Erase").click()
    form.locator(".outcome a").first.wait_for()
    page.wait_for_timeout(500)
    frames.append(("Done, with the certificate", form.screenshot()))
    form.get_by_role("link", name="Certificate").click()
    page.wait_for_timeout(500)
    frames.append(("The certificate", page.screenshot()))
    sheet(browser, frames, target / "page-erasure.png")


def history(broker: BlockingBroker, page: Page) -> None:
    """Picture the history after some traffic."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(30):
        for _ in range(400 * (1 + number * 7 % 5)):
            producer.produce("orders", f'{{"customer": {number}}}')
        producer.flush()
        page.wait_for_timeout(1000)
        broker.call(broker.services.history().sample())


def compaction(browser: Browser, broker: BlockingBroker, page: Page, target: Path) -> None:
    """Picture the progress of a round."""
    page.goto("/topics/sessions")
    frames = [("Before", strips(page))]
    at_work = Thread(target=broker.compact, args=("sessions",), kwargs={"engine": "inline"})
    at_work.start()
    page.locator(".reading").wait_for()
    frames.append(("Segments are read", strips(page)))
    page.locator(".outputs").wait_for()
    for _ in range(200):  # until enough is written to be seen
        if page.evaluate("[...document.querySelectorAll('.outputs rect')].some((one) => one.width.baseVal.value > 20)"):
            break
        page.wait_for_timeout(100)
    frames.append(("The first are replaced, and what is to take the place of others is written", strips(page)))
    at_work.join()
    page.locator(".ghost").wait_for()
    page.wait_for_timeout(2500)
    frames.append(("The round is over", strips(page)))
    sheet(browser, frames, target / "page-compaction.png")


def main(directory: str) -> None:
    """Take all pictures."""
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        settings = {"diamant_http_listen": "127.0.0.1:0", "diamant_clock": "manual"}
        with Broker(listen="127.0.0.1:0", **settings) as broker:
            fill(broker)
            page = browser.new_page(base_url=broker.http_url, viewport=SIZE)
            views(page, target)
            before_and_after(browser, page, target)
            erasure(browser, page, target)
            history(broker, page)
            page.goto("/history")
            page.locator("canvas").first.wait_for()
            page.wait_for_timeout(500)
            page.screenshot(path=target / "page-history.png")
        throttle = {"log_cleaner_io_max_bytes_per_second": ROUND_BYTES_PER_S}
        with Broker(listen="127.0.0.1:0", diamant_http_listen="127.0.0.1:0", **throttle) as broker:
            fill_large(broker)
            page = browser.new_page(base_url=broker.http_url, viewport=SIZE)
            compaction(browser, broker, page, target)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
