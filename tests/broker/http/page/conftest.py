"""A real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response, expect, sync_playwright

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.client.kafka_client import KafkaClient
from diamant.broker.client.kafka_group import KafkaGroup

TIMEOUT_MS = 60_000
NOT_NEEDED = (
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup",
    "AimEnabled", "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades", "LensOverlay", "MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding",
    "PreconnectToSearch", "ThirdPartyStoragePartitioning",
)  # fmt: skip
"""Parts of Chromium to leave out: the suggestions below the address bar, two web pages for each window that take longer to load
than a test's own page; and what Playwright leaves out, as the last argument of a name replaces those before it."""

expect.set_options(timeout=TIMEOUT_MS)


def find_chromium() -> str:
    """Return the browser's path. Without a browser the test is skipped, or fails if CI is set."""
    if os.environ.get("BROWSER") == "skip":
        pytest.skip("BROWSER=skip")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        reason = "there is no Chromium: on Debian, as root: apt-get install -y chromium"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser per module: while it runs, no asyncio test can run in this process."""
    path = find_chromium()
    with sync_playwright() as playwright:
        features = f"--disable-features={','.join(NOT_NEEDED)}"
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", features]
        )
        yield browser
        browser.close()


class Watch(NamedTuple):
    """Misbehaviour of a page."""

    errors: list[str]
    elsewhere: list[str]


def watched(context: BrowserContext, origin: str) -> tuple[Page, Watch]:
    """Return a page that records console errors and requests to other origins."""
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    watch = Watch([], [])

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            watch.errors.append(message.text)

    def look(response: Response) -> None:
        if response.status >= 400 and response.request.method == "GET" and "/v1/" not in response.url:
            watch.errors.append(f"{response.status} {response.url}")

    page.on("console", note)
    page.on("response", look)
    page.on("pageerror", lambda error: watch.errors.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith(f"{origin}/") else watch.elsewhere.append(request.url)
    )
    return page, watch


@contextmanager
def filled_broker() -> Iterator[BlockingBroker]:
    """A broker with a compacted topic of several segments, and malicious names and values."""
    with Broker(diamant_http_listen="127.0.0.1:0", diamant_clock="manual") as running:
        running.create_topic("users", 2, compact=True, internal_segment_bytes=2000, min_cleanable_dirty_ratio=1)
        running.create_topic("large", compact=True)
        for number in range(100):
            value = None if number == 33 else f"v{number}"
            running.produce("users", value, key=f"k{number % 10}", partition=0)
        running.produce("users", HOSTILE, key=HOSTILE, partition=1, headers={"h": HOSTILE})
        running.produce("users", None, key="gone", partition=1)
        with KafkaClient(running.bootstrap_servers, timeout_s=60) as client:
            KafkaGroup(client, "readers/1").commit({("users", 1): 0})
        running.create_topic("alike", 12, compact=True)
        for partition in range(12):
            for number in range(2):
                running.produce("alike", f"v{number}", key="k", partition=partition)
        running.produce("large", "y" * 1_000_000, key="<img src=x onerror=alert(1)>")
        yield running


HOSTILE = "<script>document.title='harmed'</script>\u202eevil\x00"


@pytest.fixture
def broker() -> Iterator[BlockingBroker]:
    """One of the test's own."""
    with filled_broker() as running:
        yield running


@contextmanager
def page_of(chromium: Browser, broker: BlockingBroker) -> Iterator[tuple[Page, Watch]]:
    """A page in a context of its own."""
    assert broker.http_url is not None
    with chromium.new_context(base_url=broker.http_url, viewport={"width": 1200, "height": 900}) as context:
        yield watched(context, f"http://{urlsplit(broker.http_url).netloc}")


@pytest.fixture
def page(chromium: Browser, broker: BlockingBroker) -> Iterator[Page]:
    """A page of that broker; at the end it must have no errors and no foreign requests."""
    with page_of(chromium, broker) as (page, watch):
        yield page
        assert watch == Watch([], [])


@pytest.fixture(scope="module")
def lasting_page(chromium: Browser) -> Iterator[tuple[Page, Watch]]:
    """A page of a broker that no test changes: a window, its broker and its renderer take half a second of processor time."""
    with filled_broker() as broker, page_of(chromium, broker) as found:
        yield found


@pytest.fixture
def reader_page(lasting_page: tuple[Page, Watch]) -> Iterator[Page]:
    """The same for each test that only looks: it begins with a `goto`, and is held to the same as `page`."""
    page, watch = lasting_page
    watch.errors.clear()
    watch.elsewhere.clear()
    yield page
    assert watch == Watch([], [])
