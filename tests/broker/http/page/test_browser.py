"""The page in a real browser: views work, and stay accessible and safe."""

from __future__ import annotations

import math
import re
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from playwright.sync_api import Browser, Locator, Page, expect

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.topics.deletion import delete_topics
from tests.broker.http.page.conftest import watched

VIEWS = (
    "/", "/topics", "/topics/users", "/topics/users/settings",
    "/topics/users/records", "/topics/users/0", "/topics/users/1", "/topics/large/0", "/topics/users/0/99", "/topics/alike",
    "/groups", "/groups/readers%2F1", "/groups/readers%2F1/tombstones", "/forget", "/people", "/faults",
    "/history",
)  # fmt: skip
AXE_OPTIONS = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]},
    "resultTypes": ["violations"],
}
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast"]}, "resultTypes": ["violations"]}
"""The one of them that depends on the scheme."""

pytestmark = pytest.mark.slow


def violations(page: Page, options: dict[str, Any] = AXE_OPTIONS) -> str:
    """What axe finds where it has been loaded into the page; nothing if all is well."""
    found = AxeResults(page.evaluate("options => axe.run(document, options)", options))
    return found.generate_report() if found.response["violations"] else ""


def test_each_view_can_be_read_by_all(page: Page) -> None:
    """WCAG 2.2 AA finds no violation on a telephone, nor in the colours of the dark scheme on a desk; nothing exceeds the
    window, and no record becomes markup.
    """
    for view in VIEWS:
        page.set_viewport_size({"width": 360, "height": 800})
        page.emulate_media(color_scheme="light")
        page.goto(view)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.evaluate(AXE_SCRIPT)
        assert violations(page) == "", view
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
        page.set_viewport_size({"width": 1200, "height": 800})
        page.emulate_media(color_scheme="dark")
        assert violations(page, COLOURS) == "", view
        assert page.evaluate("document.documentElement.scrollWidth") <= 1200, view
        assert "harmed" not in page.title()
        assert page.locator("img").count() == 0


def test_durations_are_words_on_each_view(page: Page, broker: BlockingBroker) -> None:
    """Durations of seconds, minutes, hours and days have their two largest units, and no unit twice in a row."""
    broker.clock.advance("2d")
    for up_s, words in ((20, "less than a minute"), (452, "7m"), (3 * 3600 + 452, "3h 7m"), (201_000, "2d 7h")):
        broker.node.started_s = time.monotonic() - up_s
        page.goto("/")
        expect(page.locator(".facts div", has_text="Uptime").locator("dd")).to_have_text(words)
    for view in VIEWS:
        page.goto(view)
        assert re.findall(r"\b(?:\d+(?:ms|[smhdw]) ?){3,}|\b(\d+[smhd])\1", page.inner_text("body")) == [], view


def test_a_compaction_is_seen(page: Page, broker: BlockingBroker) -> None:
    """The button shows the report, and the strip shrinks without a reload."""
    page.goto("/topics/users")
    strip = page.locator("#p0")
    expect(strip).to_contain_text("90 superseded")
    page.get_by_role("button", name="Compact now").click()
    expect(page.locator(".action .outcome").first).to_contain_text('"superseded": 90')
    expect(strip).not_to_contain_text("superseded")
    expect(strip).to_contain_text("10 live")
    assert len(list(broker.records("users"))) == 12


def test_each_action_is_shown_as_a_command(reader_page: Page) -> None:
    """Each action of the page is shown as a command for the shell, Python and curl."""
    reader_page.goto("/topics/users")
    reader_page.locator(".calls summary").first.click()
    calls = reader_page.locator(".calls").first
    expect(calls).to_contain_text("diamant compact users")
    expect(calls).to_contain_text('broker.compact("users")')
    expect(calls).to_contain_text("curl http://127.0.0.1:")


def commands_of(place: Locator) -> tuple[str, str, str]:
    """Return the shell, Python and curl commands shown."""
    shell, python, curl = place.first.evaluate(COMMANDS)
    assert shell
    assert python
    assert curl
    return shell, python, curl


COMMANDS = "place => ['shell', 'python', 'curl'].map(name => place.querySelector(`[data-as=${name}]`)?.textContent)"


def test_every_form_of_every_view_shows_its_commands(reader_page: Page) -> None:
    """Each form, or its preview, shows the shell, Python and curl commands. The login and filters have none."""
    page, seen = reader_page, set()
    for view in VIEWS:
        page.goto(view)
        forms = page.locator("form:not([method=get], .login, [data-go])")
        found = forms.evaluate_all(f"forms => forms.map(form => [form.dataset.path, ({COMMANDS})(form)])")
        for path, (shell, python, curl) in found:
            seen.add(path or "/v1/find")
            if path and path.endswith("/settings"):
                continue  # its answer has them: below
            assert shell.startswith(("diamant ", "echo VALUE | diamant produce ")), (view, shell)
            assert "diamant." in python or "broker." in python, (view, python)
            assert "curl" in curl, (view, curl)
    assert {"/forget/key", "/forget/where", "/v1/verify", "/v1/faults", "/v1/compact", "/v1/roll", "/v1/find"} <= seen
    assert {"/v1/produce", "/v1/groups/readers%2F1/offsets"} <= seen
    page.goto("/topics/users/settings")
    setting = page.get_by_label("retention.ms", exact=True)
    setting.get_by_text("Change", exact=True).click()
    setting.get_by_label("New value of retention.ms").fill("1")
    setting.get_by_role("button", name="Preview").click()
    assert commands_of(setting.locator(".confirm"))[0] == "diamant topic alter users --config retention.ms=1"
    for view in ("/topics/users/0/99", "/groups/readers%2F1/tombstones"):
        page.goto(view)
        assert commands_of(page.locator("main"))[0].startswith("diamant explain users --")


def test_the_commands_of_a_look_follow_what_is_typed(reader_page: Page) -> None:
    """The page shows one command per chosen topic; a search has the same."""
    reader_page.goto("/forget")
    form = reader_page.locator("form[data-path='/forget/key']")
    reader_page.get_by_label("Key", exact=True).fill("k'3")
    reader_page.get_by_label("Topics (select none to search all)").select_option(["large", "users"])
    shell, python, curl = commands_of(form)
    quoted = "'k'\\''3'"
    assert shell == f"diamant explain large --key {quoted}\ndiamant explain users --key {quoted}"
    assert python.splitlines()[1] == 'diamant.Admin().explain("users", key="k\'3")'
    assert '{"topic":"users","key":{"text":"k' in curl
    reader_page.get_by_label("Key format").select_option("hex")
    reader_page.get_by_label("Key", exact=True).fill("6b33")
    assert commands_of(form)[0].splitlines()[1] == "diamant explain users --key-hex '6b33'"
    reader_page.get_by_label("Topic", exact=True).select_option("users")
    reader_page.get_by_label("Condition").fill('key == "k3"')
    shell, python, _ = commands_of(reader_page.locator("form[data-path='/forget/where']"))
    assert shell == """diamant find users --where 'key == "k3"'"""
    assert python == """list(diamant.Admin().find("users", where="key == \\"k3\\""))"""
    reader_page.goto("/topics/users/0")
    reader_page.get_by_label("for", exact=True).fill("k3")
    assert commands_of(reader_page.locator("form.find"))[0] == "diamant find users --key 'k3'"
    reader_page.get_by_label("only partition 0").check()
    assert commands_of(reader_page.locator("form.find"))[0] == "diamant find users --partition 0 --key 'k3'"
    form = reader_page.locator("form[data-path='/v1/produce']")
    reader_page.get_by_text("Produce a record").click()
    form.get_by_label("Key (optional)").fill("k")
    form.get_by_label("Value", exact=True).fill("it's")
    form.get_by_label("Headers").fill('{"trace": "7"}')
    shell, python, curl = commands_of(form)
    assert shell == "echo 'it'\\''s' | diamant produce users --partition 0 --key 'k' --header 'trace=7'"
    assert python == """broker.produce("users", "it's", key="k", partition=0, headers={"trace":"7"})"""
    assert (
        """{"topic":"users","key":{"text":"k"},"value":{"text":"it'\\''s"},"partition":0,"headers":{"trace":"7"}}"""
        in curl
    )
    reader_page.goto("/groups/readers%2F1")
    reader_page.get_by_label("To: start").fill("+5")
    reader_page.get_by_label("only show").check()
    shell, python, _ = commands_of(reader_page.locator("form[data-path$=offsets]"))
    assert shell == "diamant group reset 'readers/1' --topic users --to '+5' --dry-run"
    assert python == 'diamant.Admin().reset_offsets("readers/1", "users", "+5", validate_only=True)'


def test_a_failed_action_says_why(page: Page, broker: BlockingBroker) -> None:
    """The broker's message appears beside the button."""
    page.goto("/topics/users")
    broker.create_topic("other", 1)
    page.evaluate("document.querySelector('form.action').dataset.fields = '{\"topic\": \"other\"}'")
    page.get_by_role("button", name="Compact now").click()
    expect(page.locator(".outcome.failed")).to_contain_text("cleanup.policy")


def test_a_key_is_erased_after_a_look(page: Page, broker: BlockingBroker) -> None:
    """The preview's figures are confirmed; the certificate is a page and a file, listed and verified."""
    page.goto("/forget")
    page.get_by_label("Key", exact=True).fill("k3")
    page.get_by_role("button", name="Preview").first.click()
    form = page.locator("form.confirm")
    expect(page.locator("main")).to_contain_text("9 superseded, 1 live")
    page.get_by_role("button", name="Erase", exact=True).click()
    assert len(list(broker.records("users"))) == 102  # the browser asks for what is missing
    form.get_by_label("Reason").fill("a request")
    form.get_by_label("Case number").fill("case-7")
    form.get_by_label("Erase 10 records with this key from users").check()
    page.get_by_role("button", name="Erase", exact=True).click()
    expect(form.locator(".outcome")).to_contain_text("Done: all values are gone, a deletion mark stays for consumers.")
    assert [record.value for _, record in broker.records("users") if record.key == b"k3"] == [None]
    with page.expect_download() as download:
        page.get_by_role("link", name="Download (JSON)").click()
    page.get_by_role("link", name="Certificate", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("All values are gone")
    assert (
        page.evaluate("getComputedStyle(document.querySelector('h1')).color") != "rgb(0, 0, 0)"
    )  # its style is let through
    page.evaluate(AXE_SCRIPT)
    assert violations(page) == ""
    page.goto("/forget")
    expect(page.locator("main")).to_contain_text("case-7")
    page.get_by_label("Certificate (JSON file)").set_input_files(download.value.path())
    page.get_by_role("button", name="Verify").click()
    expect(page.locator(".outcome").last).to_contain_text("valid: trusted.")


def test_records_are_redacted_after_a_look(page: Page, broker: BlockingBroker) -> None:
    """A preview shows the records that match and those that stay."""
    broker.create_topic("orders", 1)
    for number in range(6):
        broker.produce("orders", f'{{"customer": {number % 3}}}')
    page.goto("/forget")
    page.get_by_label("Topic", exact=True).select_option("orders")
    page.get_by_label("Condition").fill("value.customer == 1")
    page.get_by_role("button", name="Preview").nth(1).click()
    form = page.locator("form.confirm")
    form.get_by_label("Reason").fill("a request")
    form.get_by_label("Remove 2 records from orders; 4 stay").check()
    page.get_by_role("button", name="Redact").click()
    expect(form.locator(".outcome")).to_contain_text("Done: all records that matched are gone.")
    assert [record.offset for _, record in broker.records("orders")] == [0, 2, 3, 5]


def test_a_fault_is_added_seen_and_removed(page: Page, broker: BlockingBroker) -> None:
    """The list is live."""
    page.goto("/faults")
    page.get_by_label("API").select_option("Produce")
    page.get_by_label("Error").select_option("NOT_LEADER_OR_FOLLOWER")
    page.get_by_label("Times to fire").fill("2")
    page.get_by_role("button", name="Add").click()
    expect(page.locator(".fault")).to_contain_text("api Produce, times 2, error NOT_LEADER_OR_FOLLOWER")
    [fault] = broker.faults.list()
    assert (fault.spec.times, fault.count) == (2, 0)
    page.get_by_role("button", name="Remove").click()
    expect(page.locator("main")).to_contain_text("No faults are installed")
    assert broker.faults.list() == []


def test_charts_of_the_history(page: Page, broker: BlockingBroker) -> None:
    """Every chart is drawn; a topic has its own charts."""
    page.goto("/history")
    broker.produce("users", "more", key="k")
    broker.call(broker.services.history().sample())
    page.goto("/history")
    expect(page.locator(".chart canvas")).to_have_count(6)
    page.get_by_label("Broker or topic").select_option("users")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("topic=users"))
    expect(page.locator(".chart canvas")).to_have_count(4)


def test_a_group_and_the_tombstones_before_it(reader_page: Page) -> None:
    """The group has its lag and its unread deletions."""
    reader_page.goto("/groups")
    reader_page.get_by_role("link", name="readers/1").click()
    expect(reader_page.locator("main")).to_contain_text("lag 2")
    reader_page.get_by_text("Count unread tombstones").click()
    expect(reader_page.locator(".found")).to_contain_text("users-1: 1")


def test_the_filter_and_the_keyboard(reader_page: Page) -> None:
    """Typing filters the list; Tab and Enter open a view, and its address can be shared."""
    reader_page.goto("/topics")
    reader_page.get_by_label("Name contains").press_sequentially("use")
    expect(reader_page.locator("tbody tr")).to_have_count(1)
    expect(reader_page).to_have_url(re.compile(r"/topics\?q=use"))
    reader_page.goto("/topics")
    reader_page.keyboard.press("Tab")
    expect(reader_page.get_by_text("Skip to content")).to_be_focused()
    reader_page.get_by_role("link", name="users").focus()
    reader_page.keyboard.press("Enter")
    expect(reader_page.get_by_role("heading", level=1)).to_have_text("users")


def test_the_fate_of_a_record_beside_it(reader_page: Page) -> None:
    """The explanation is fetched on demand."""
    reader_page.goto("/topics/users/0?offset=3")
    reader_page.locator(".record summary").first.click()
    reader_page.get_by_text("Why is this record still here, and until when?").first.click()
    expect(reader_page.locator(".fate").first).to_contain_text("superseded by 13")


def test_a_search_tells_what_it_finds(reader_page: Page) -> None:
    """A search by key or text, in all partitions or one, takes the place of the list; results are text, and no key is in the
    address.
    """
    reader_page.goto("/topics/users/0")
    reader_page.get_by_label("for", exact=True).fill("k3")
    reader_page.get_by_label("only partition 0").check()
    reader_page.get_by_role("button", name="Search").click()
    found, records = reader_page.locator("#found"), reader_page.locator("#records")
    expect(found).to_contain_text("10 found in partition 0.")
    assert found.locator("tbody tr a").all_inner_texts() == [f"0: {offset}" for offset in range(93, 0, -10)]
    expect(records).to_be_hidden()
    expect(found.get_by_role("link", name="0: 93")).to_have_attribute("href", "/topics/users/0?offset=93")
    reader_page.get_by_label("Search by").select_option("text")
    reader_page.get_by_label("for", exact=True).fill("<script>")
    reader_page.get_by_label("only partition 0").uncheck()
    reader_page.get_by_role("button", name="Search").click()
    expect(found).to_contain_text("1 found in all 2 partitions.")
    expect(found.locator("tbody")).to_contain_text("<script>document.title='harmed'</script>\\u202eevil\\u0000")
    reader_page.get_by_label("for", exact=True).fill("nowhere")
    reader_page.get_by_role("button", name="Search").click()
    expect(found).to_contain_text("Nothing found in all 2 partitions.")
    reader_page.get_by_role("button", name="Back to the list").click()
    expect(found).to_be_hidden()
    expect(records).to_be_visible()
    assert reader_page.url.endswith("/topics/users/0")


def test_a_record_is_one_line_that_unfolds(reader_page: Page) -> None:
    """On a telephone as on a desk, a record is one line; key, value and headers are below it."""
    for width in (390, 1280):
        reader_page.set_viewport_size({"width": width, "height": 800})
        reader_page.goto("/topics/users/records")
        lines = reader_page.locator(".record summary")
        heights = lines.evaluate_all("lines => lines.map(line => line.getBoundingClientRect().height)")
        assert len(heights) == 50
        assert max(heights) <= 34
        reader_page.goto("/topics/users/1")
        expect(lines.first).to_contain_text("<script>")
        lines.first.focus()
        reader_page.keyboard.press("Enter")
        expect(reader_page.locator(".record[open] dl")).to_contain_text("Headers")
    reader_page.set_viewport_size({"width": 1200, "height": 900})


def test_a_record_is_produced(page: Page, broker: BlockingBroker) -> None:
    """The form says where it is; what is wrong is said, too."""
    page.goto("/topics/users/records")
    page.get_by_text("Produce a record").click()
    form = page.locator("form[data-path='/v1/produce']")
    form.get_by_label("Key (optional)").fill("00ff")
    form.get_by_label("Key format").select_option("hex")
    form.get_by_label("Value", exact=True).fill("new")
    form.get_by_label("Headers").fill('{"trace": 7')
    form.get_by_label("Partition").select_option("1")
    form.get_by_role("button", name="Produce").click()
    expect(form.locator(".outcome.failed")).to_contain_text("JSON")
    form.get_by_label("Headers").fill('{"trace": "7"}')
    form.get_by_role("button", name="Produce").click()
    expect(form.locator(".outcome")).to_contain_text("Written: partition 1, offset 2.")
    [*_, (_, record)] = broker.records("users", 1)
    assert (record.key, record.value, [*map(tuple, record.headers)]) == (b"\0\xff", b"new", [("trace", b"7")])


def test_the_offsets_of_a_group_are_reset(page: Page) -> None:
    """A trial shows the new ones; the reset commits them, and the page has them."""
    page.goto("/groups")
    expect(page.locator("tr", has_text="readers/1").get_by_role("link", name="users")).to_be_visible()
    page.get_by_role("link", name="readers/1").click()
    form = page.locator("form[data-path$=offsets]")
    form.get_by_label("To: start").fill("end")
    form.get_by_label("only show").check()
    form.get_by_role("button", name="Reset").click()
    expect(form.locator(".outcome")).to_contain_text("0: nothing → 100, 1: 0 → 2")
    expect(page.locator("main")).to_contain_text("lag 2")
    form.get_by_label("only show").uncheck()
    form.get_by_role("button", name="Reset").click()
    expect(page.locator("main")).to_contain_text("lag 0")


REACHED = """label => {
    const cell = document.querySelector(`td[data-label='${label}']`);
    const tables = [...document.querySelectorAll(".scroll:has(> .cards)")];
    const name = getComputedStyle(cell, "::before").content;
    return [cell.getBoundingClientRect().right, name, tables.filter((one) => one.scrollWidth > one.clientWidth).length];
}"""
"""The right edge of a cell, the name that it shows, and the number of tables wider than their place."""


def test_main_figures_fit_the_screen_of_a_telephone(reader_page: Page) -> None:
    """Lags, rounds, sizes and states are within 390 pixels, with their names, without scrolling sideways."""
    reader_page.set_viewport_size({"width": 390, "height": 800})
    for view, label in (
        ("/groups", "Lag"), ("/groups/readers%2F1", "Lag"), ("/topics/users", "Next round"), ("/topics", "Last round"),
    ):  # fmt: skip
        reader_page.goto(view)
        reader_page.locator(f"td[data-label='{label}']").first.wait_for()
        right, name, too_wide = reader_page.evaluate(REACHED, label)  # at once: live parts are replaced
        assert (right <= 390, name, too_wide) == (True, f'"{label}"', 0), view
    reader_page.set_viewport_size({"width": 1200, "height": 900})


SIDEWAYS = """() => {
    for (const one of document.querySelectorAll("details")) one.open = true;
    const regions = [document.documentElement, ...document.querySelectorAll(".scroll")];
    return regions.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel || "the page");
}"""


def test_nothing_scrolls_sideways(page: Page, broker: BlockingBroker) -> None:
    """On a telephone and on a desk no view, and no table in it, is wider than its place, however long a topic's name is."""
    name = "long-" * 49
    broker.create_topic(name, 1, compact=True)
    broker.produce(name, "v" * 500, key="k" * 300)
    broker.compact("users")
    broker.clock.advance("30s")
    broker.call(broker.services.history().sample())
    long = [f"/topics/{name}{rest}" for rest in ("", "/records", "/0", "/settings")]
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        for view in (*VIEWS, *long, "/history?topic=users", "/topics/users/0?offset=93"):
            page.goto(view)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert page.evaluate(SIDEWAYS) == [], (width, view)
        page.goto("/forget")
        page.get_by_label("Key", exact=True).fill("k3")
        page.get_by_role("button", name="Preview").first.click()
        page.locator("form.confirm").wait_for()
        assert page.evaluate(SIDEWAYS) == [], width


def test_partitions_alike_are_one_strip_and_one_row(reader_page: Page) -> None:
    """Twelve partitions that are alike share a strip and a row; each is one click away."""
    reader_page.goto("/topics/alike")
    expect(reader_page.locator("#total h2")).to_contain_text("12 similar partitions")
    expect(reader_page.locator("#total h2")).to_contain_text("12 live, 12 superseded")
    expect(reader_page.locator("#p0")).to_be_hidden()
    expect(reader_page.locator("section[aria-labelledby=holds] tbody tr")).to_have_count(1)
    expect(reader_page.locator("section[aria-labelledby=holds] tbody td").first).to_have_text("0 to 11")
    expect(reader_page.locator("section[aria-labelledby=segments] summary")).to_have_count(1)
    reader_page.get_by_text("Each of the 12 partitions").click()
    expect(reader_page.locator("#p11")).to_be_visible()


def test_segments_are_reached_by_keyboard(reader_page: Page) -> None:
    """Tab goes from segment to segment, arrow keys as well, and each says its figures."""
    reader_page.goto("/topics/users")
    strip = reader_page.locator("#p0")
    count = strip.locator(".bar g").count()
    assert count > 3
    strip.get_by_role("link").focus()
    for number in range(count):
        reader_page.keyboard.press("Tab")
        focused = reader_page.evaluate("document.activeElement.id")
        assert focused == strip.locator(".bar g").nth(number).get_attribute("id")
        expect(strip.locator(".told")).to_contain_text("Segment")
    reader_page.keyboard.press("ArrowLeft")
    expect(strip.locator(".bar g").nth(count - 2)).to_be_focused()


def test_a_damaged_batch_is_passed(page: Page, broker: BlockingBroker) -> None:
    """The list names it and goes on; a link leads to the next sound batch."""
    log = broker.node.topics.by_name["users"].logs[0]
    segment = log.segments[0]
    position, header = list(segment.scan_from(0))[5]
    file = log.env.open(segment.path)
    file.pwrite(b"\xff\xff", position + 70)
    file.close()
    page.goto("/topics/users/0")
    damage = page.locator(".damage")
    expect(damage).to_contain_text(f"Offset {header.base_offset} cannot be read, consumers stop here: the checksum")
    damage.get_by_role("link", name=f"Continue at {header.next_offset}").click()
    expect(page.locator(".damage")).to_have_count(0)
    expect(page.locator(".record .at").first).to_have_text(str(header.next_offset))


def test_a_search_is_cancelled(reader_page: Page) -> None:
    """The button is there while the search runs."""
    reader_page.goto("/topics/users/0")
    reader_page.route("**/v1/find", lambda _: None)  # which never answers
    reader_page.get_by_label("for", exact=True).fill("k3")
    reader_page.get_by_role("button", name="Search").click()
    reader_page.get_by_role("button", name="Cancel").click()
    expect(reader_page.locator("#found")).to_contain_text("Cancelled. 0 found so far.")
    expect(reader_page.get_by_role("button", name="Cancel")).to_be_hidden()
    reader_page.unroute_all()


def test_results_of_actions_are_accessible(page: Page) -> None:
    """WCAG 2.2 AA finds no violation in results added to a view."""

    def check() -> None:
        page.evaluate(AXE_SCRIPT)
        assert violations(page) == "", page.url

    page.goto("/topics/users/0")
    page.get_by_label("for", exact=True).fill("k3")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#found")).to_contain_text("10 found in all 2 partitions.")
    check()
    page.get_by_role("button", name="Back to the list").click()
    page.locator(".record summary").first.click()
    page.get_by_text("Produce a record").click()
    page.get_by_text("Why is this record still here, and until when?").first.click()
    expect(page.locator(".timeline").first).to_be_visible()
    check()
    page.goto("/topics/users/settings")
    setting = page.get_by_label("retention.ms", exact=True)
    setting.get_by_text("Change", exact=True).click()
    setting.get_by_label("New value of retention.ms").fill("1")
    setting.get_by_role("button", name="Preview").click()
    expect(setting.locator(".confirm")).to_be_visible()
    check()
    page.goto("/forget")
    page.get_by_label("Key", exact=True).fill("k3")
    page.get_by_role("button", name="Preview").first.click()
    expect(page.locator("form.confirm")).to_be_visible()
    check()
    page.goto("/topics/users")
    page.get_by_role("button", name="Compact now").click()
    page.get_by_text("Full response").click()
    page.locator(".calls summary").first.click()
    check()


def test_a_large_partition_is_looked_into(page: Page, broker: BlockingBroker) -> None:
    """A button counts it, with progress and a way to cancel; its strip is then drawn."""
    figures, counts = broker.services.segment_figures(), broker.services.background_counts()
    figures.unasked_bytes = 100
    counts._from_s = math.inf
    broker.call(figures._large_lock.acquire())  # another one is being counted
    page.goto("/topics/users")
    expect(page.locator("#p0")).not_to_contain_text("superseded")
    form = page.locator("form[data-path='/v1/segments']")
    form.get_by_role("button", name="Count now").click()
    expect(form.locator(".outcome")).to_contain_text("counting")
    form.get_by_role("button", name="Cancel").click()
    expect(form.locator(".outcome")).to_contain_text("was cancelled before its end")
    figures._large_lock.release()
    form.get_by_role("button", name="Count now").click()
    expect(form.locator(".outcome")).to_contain_text("Counted.")
    expect(page.locator("#p0")).to_contain_text("90 superseded")


def test_a_setting_is_changed(page: Page, broker: BlockingBroker) -> None:
    """A preview explains the change, confirmation applies it, and a refusal is shown."""
    page.goto("/topics/users")
    page.get_by_role("link", name="See and change all settings").click()
    setting = page.get_by_label("retention.ms", exact=True)
    setting.get_by_text("Change", exact=True).click()
    setting.get_by_label("New value of retention.ms").fill("soon")
    setting.get_by_role("button", name="Preview").click()
    expect(setting.locator(".outcome.failed").first).to_contain_text("Invalid value soon")
    setting.get_by_label("New value of retention.ms").fill("86400000")
    setting.get_by_role("button", name="Preview").click()
    expect(setting.locator(".confirm")).to_contain_text("604800000 (7d), default → 86400000 (1d), set for this topic")
    config = broker.node.topics.by_name["users"].logs[0]
    assert config.config.retention_ms == 604_800_000
    setting.get_by_role("button", name="Apply").click()
    expect(page.get_by_label("retention.ms", exact=True)).to_contain_text("86400000 1d set for this topic")
    assert config.config.retention_ms == 86_400_000


def test_the_commands_of_a_form_follow_what_is_typed(reader_page: Page) -> None:
    """The commands follow what is typed into a form, for the shell, Python and curl."""
    reader_page.goto("/faults")
    reader_page.get_by_label("API").select_option("Produce")
    reader_page.get_by_label("Times to fire").fill("2")
    reader_page.get_by_label("Hold until released").check()
    reader_page.get_by_text("As a command").click()
    expect(reader_page.locator("[data-as=shell]")).to_have_text("diamant fault add api=Produce times=2 hold=true")
    expect(reader_page.locator("[data-as=python]")).to_have_text('broker.faults.add(api="Produce", times=2, hold=True)')
    expect(reader_page.locator("[data-as=curl]")).to_contain_text("""-d '{"api":"Produce","times":2,"hold":true}'""")


def test_a_whole_value_is_downloaded(reader_page: Page) -> None:
    """A long value is shown in part."""
    reader_page.goto("/topics/large/0")
    reader_page.locator(".record summary").click()
    with reader_page.expect_download() as download:
        reader_page.get_by_role("link", name="download the whole value").click()
    assert download.value.path().stat().st_size == 1_000_000


def test_a_topic_that_goes_while_it_is_looked_at(page: Page, broker: BlockingBroker) -> None:
    """The page keeps its content and says so, as do its forms; commands in a sentence are marked."""
    page.goto("/topics/users")
    expect(page.locator("#p0")).to_contain_text("90 superseded")
    broker.call(delete_topics(broker.node.topics, ["users"]))
    page.get_by_role("button", name="Compact now").click()
    for place in (page.locator("#connection"), page.locator(".outcome.failed")):
        expect(place).to_contain_text("there is no topic 'users': diamant topic list lists those that exist, diamant")
        expect(place.locator("code")).to_have_text(["diamant topic list", "diamant topic create"])
    expect(page.locator("#connection")).to_contain_text("No longer live: ")
    expect(page.locator("#p0")).to_contain_text("90 superseded")


def test_the_clock_is_moved(page: Page, broker: BlockingBroker) -> None:
    """A manual clock has buttons."""
    page.goto("/")
    before_ms = broker.clock.now_ms()
    page.get_by_role("button", name="Advance by 1 day").click()
    expect(page.locator(".action").nth(2)).to_contain_text("Done.")
    page.get_by_label("Advance by", exact=True).fill("2d")
    expect(page.locator("form.ask [data-as=shell]")).to_have_text("diamant clock advance '2d'")
    page.get_by_role("button", name="Advance", exact=True).click()
    expect(page.locator("form.ask")).to_contain_text("Done.")
    assert broker.clock.now_ms() >= before_ms + 3 * 86_400_000


def test_the_page_is_readable_without_javascript(chromium: Browser, broker: BlockingBroker) -> None:
    """All content is in the page itself."""
    with chromium.new_context(base_url=broker.http_url, java_script_enabled=False) as context:
        page = context.new_page()
        broker.call(broker.services.segment_figures().count(broker.node.topics.by_name["users"].logs[0]))
        page.goto("/topics/users")
        expect(page.locator("#p0")).to_contain_text("90 superseded")
        page.goto("/topics?q=lar")
        expect(page.locator("tbody tr")).to_have_count(1)


def test_the_page_survives_a_restart_of_the_broker(chromium: Browser, broker: BlockingBroker) -> None:
    """Live views report the outage, keep their content, and resume afterwards."""
    assert broker.http_url is not None
    address = urlsplit(broker.http_url).netloc
    broker.faults.add(api="Produce", error="NOT_LEADER_OR_FOLLOWER")
    before = {
        "/": "4 with 16 partitions",
        "/groups": "readers/1",
        "/faults": "Fault 1",
        "/topics/users": "90 superseded",
    }
    after = {"/": "1 with 1 partition", "/groups": "No groups yet", "/faults": "No faults"}
    with chromium.new_context(base_url=broker.http_url) as context:
        pages = []
        for view, text in before.items():
            page, watch = watched(context, broker.http_url)
            page.goto(view)
            expect(page.locator("#main")).to_contain_text(text)
            pages.append((view, page, watch))
        broker.call(broker.awaited.stop())
        for view, page, _ in pages:
            expect(page.locator("#connection")).to_contain_text("is not responding")
            expect(page.locator("#main")).to_contain_text(before[view])
        with Broker(diamant_http_listen=address) as again:
            again.create_topic("only")
            for view, page, watch in pages:
                if view in after:
                    expect(page.locator("#connection")).to_be_hidden()
                    expect(page.locator("#main")).to_contain_text(after[view])
                else:
                    expect(page.locator("#connection")).to_contain_text("there is no topic 'users'")
                assert watch.elsewhere == []
