"""The examples of the documentation, run as they stand against a broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.documentation import console_pages

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:9092"


def examples(page: str) -> list[str]:
    """Return the Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def client(example: str) -> str:
    """Return the client library that an example imports, as its id."""
    found = re.search(r"^from (\w+)", example, re.MULTILINE)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's address, in place of the one that the README uses."""
    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path_factory.mktemp("data"))) as broker:
        yield broker.bootstrap_servers


def tour() -> list[str]:
    """Return the clients of the README, and those of the page that it links to."""
    blocks = examples("README.md") + examples("docs/how-to/connect-a-client.md")
    return [block for block in blocks if ADDRESS in block]


@pytest.mark.parametrize("example", tour(), ids=client)
def test_the_tour_of_clients_works(example: str, address: str) -> None:
    """Each client of the tour prints the offset, key and value that it has just written."""
    result = subprocess.run(
        [sys.executable, "-c", example.replace(ADDRESS, address)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (result.returncode, result.stdout.split()) == (0, ["0", "b'k1'", "b'hello'"]), result.stderr


def test_the_first_tests_of_readme_and_tutorial(tmp_path: Path) -> None:
    """The test of the README and the blocks of the tutorial, which are one file with three tests, pass."""
    (tmp_path / "test_shop.py").write_text("\n\n".join(examples("docs/tutorials/first-test.md")))
    [readme] = [block for block in examples("README.md") if block.startswith("# test_shop.py")]
    (tmp_path / "test_readme.py").write_text(readme)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "."],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, "4 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_tests_of_secured_brokers_pass(tmp_path: Path) -> None:
    """The blocks of the page are one file, and its four tests pass."""
    (tmp_path / "test_secured.py").write_text("\n\n".join(examples("docs/how-to/users-and-passwords.md")))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_secured.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, "4 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_consumers_of_kafka_python_are_assigned() -> None:
    """Those that subscribe may wait for five minutes, as docs/how-to/testing.md says, and so would whoever copies the example."""
    pages = ["README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
    blocks = [
        text for page in pages for text in examples(page) if re.search(r"^from kafka import.*Consumer", text, re.M)
    ]
    assert len(blocks) >= 2
    assert [text for text in blocks if ".assign([" not in text] == []


@pytest.mark.parametrize("page", console_pages.PAGES)
def test_pages_show_what_their_commands_print(page: str, tmp_path: Path) -> None:
    """Each command of a page, in order, prints what stands below it, but for times, ids and the like."""
    steps = console_pages.steps(ROOT / page)
    assert steps
    if shutil.which("curl") is None and any("curl " in step.command for step in steps):
        assert not os.environ.get("CI"), "these pages call curl: apt-get install curl"
        pytest.skip("no curl on this machine")
    with console_pages.shell(page, tmp_path) as shell:
        for step in steps:
            printed = shell.wait_until_shown(step)
            assert console_pages.is_shown(printed, step.shown), f"$ {step.command}\n{printed}"


def test_every_page_with_commands_is_run() -> None:
    """A page with a block of console output is one of those that are run."""
    pages = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "docs").rglob("*.md")
        if console_pages.BLOCK.search(path.read_text())
    }
    assert pages == set(console_pages.PAGES)


def test_times_and_ids_of_a_page_may_differ() -> None:
    """Times, durations and ids may differ, other words and numbers not; three dots stand for any lines."""
    printed = "users at 2026-03-01T12:00:00.000Z\n3 records, 10 ms\nid 0123456789ab ───────\nend"
    assert console_pages.is_shown(printed, printed.splitlines())
    assert console_pages.is_shown(printed, ["users at 2027-01-01T00:00:01Z", "...", "end"])
    assert console_pages.is_shown(printed, ["...", "3 records, 1h 2m", "id ffffffffff00 ───", "end"])
    assert not console_pages.is_shown(printed, ["...", "4 records, 10 ms", "..."])
    assert not console_pages.is_shown(printed, ["users at 2026-03-01T12:00:00.000Z"])
    assert console_pages.steps_of("$ one \\\n    two\n$ three\nout\n") == [("one two", []), ("three", ["out"])]
