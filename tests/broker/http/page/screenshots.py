"""Takes the pictures of the page from a demo data set: `make screenshots`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from diamant.broker.broker import BlockingBroker, Broker
from tests.broker.http.page.conftest import find_chromium

SIZE = {"width": 1000, "height": 640}
VIEWS = (
    ("overview", "/", None),
    ("topics", "/topics", None),
    ("topic-before", "/topics/customers", None),
    ("records", "/topics/customers/0?offset=200", "Why is it here, until when?"),
    ("topic-after", "/topics/customers", "Compact now"),
)
"""Name of the file, path, what is pressed before the picture is taken."""


def fill(broker: BlockingBroker) -> None:
    """Topics of a shop."""
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


def main(directory: str) -> None:
    """Take them all."""
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        settings = {"diamant_http_listen": "127.0.0.1:0", "diamant_clock": "manual"}
        with Broker(listen="127.0.0.1:0", **settings) as broker:
            fill(broker)
            page = browser.new_page(base_url=broker.http_url, viewport=SIZE)
            for name, path, pressed in VIEWS:
                page.goto(path)
                if pressed is not None:
                    page.get_by_text(pressed, exact=True).first.click()
                    page.locator(".fate section, .outcome pre").first.wait_for()
                    page.wait_for_timeout(2500)  # for the live parts to follow
                page.wait_for_timeout(500)
                page.screenshot(path=target / f"page-{name}.png")
                print(f"{target}/page-{name}.png")
            page.goto("/forget")
            page.get_by_label("Key", exact=True).fill("customer-42")
            page.get_by_role("button", name="Look").first.click()
            page.locator("form.confirm").wait_for()
            page.screenshot(path=target / "page-forget.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
