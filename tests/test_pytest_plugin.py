"""The fixtures and the mark of the pytest plugin, in sessions of pytest."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from diamant import pytest_plugin

INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
addopts = --strict-markers
"""
CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def diamant_config():
    return {"num_partitions": 2}

@pytest.fixture(scope="session")
def diamant_prepare():
    def prepare(broker):
        broker.create_topic("prepared")
        broker.produce("prepared", "once")
    return prepare
"""
TESTS = """
import urllib.request
import pytest

seen = {}

def test_settings_of_the_session(diamant_broker, diamant_topic):
    assert diamant_broker.produce(diamant_topic, "v").partition in (0, 1)
    assert diamant_broker.config.num_partitions == 2
    assert urllib.request.urlopen(diamant_broker.http_url + "/health").status == 200

@pytest.mark.diamant(num_partitions=3, auto_create=False)
@pytest.mark.parametrize("number", range(2))
def test_a_parametrised_test(diamant_broker, number):
    assert diamant_broker.config.num_partitions == 3
    assert not diamant_broker.config.auto_create_topics_enable
    assert seen.setdefault("marked", diamant_broker) is diamant_broker

@pytest.mark.diamant(num_partitions=4)
class TestClass:
    def test_method(self, diamant_broker):
        assert diamant_broker.config.num_partitions == 4

    @pytest.mark.diamant(log_retention_ms=5)
    async def test_async(self, diamant_manual_broker):
        config = diamant_manual_broker.config
        assert (config.num_partitions, config["log.retention.ms"]) == (4, 5)

@pytest.mark.parametrize("number", range(2))
def test_fresh(diamant_fresh, number):
    diamant_fresh.produce("prepared", str(number))
    assert [record.value for _, record in diamant_fresh.records("prepared")] == [b"once", b"%d" % number]

def test_that_uses_none(): ...
"""
BROKERS = """
import pytest

pytestmark = pytest.mark.diamant(brokers=2)

def test_that_fails(diamant_broker):
    brokers = diamant_broker.brokers
    diamant_broker.create_topic("t", partitions=1)
    brokers.slow(1, "300ms")
    brokers.lag(1, "1h")
    brokers.down(1)
    brokers.down(2)
    brokers.up(2, lag="1h")
    assert False

def test_the_next(diamant_broker):
    found = diamant_broker.brokers.list().brokers
    assert [(one.state, one.lag, one.delay_ms) for one in found] == [("up", None, 0)] * 2
    assert all(one.in_sync_count == one.replica_count for one in found)
"""
WRONG = """
import pytest

@pytest.mark.diamant(num_partition=3)
def test_it(diamant_broker): ...
"""


def run(directory: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a file of tests with the plugin."""
    (directory / "test_it.py").write_text(text)
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "pytest.ini").write_text(INI)
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one process", "xdist"])
def test_settings_by_mark_and_by_session(tmp_path: Path, options: list[str]) -> None:
    """The nearest mark wins, then those around it, then the session's settings; equal ones share a broker."""
    found = run(tmp_path, TESTS, *options)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "8 passed" in found.stdout


@pytest.mark.slow
def test_a_failed_test_leaves_all_brokers_up(tmp_path: Path) -> None:
    """The next test finds them up, in sync, without lag and delay."""
    found = run(tmp_path, BROKERS)
    assert "1 failed, 1 passed" in found.stdout, found.stdout + found.stderr


@pytest.mark.slow
def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    """The test fails with the name, before a broker starts."""
    found = run(tmp_path, WRONG)
    assert found.returncode == 1
    assert "num_partition: there is no" in found.stdout


def test_the_guide_names_every_fixture_and_mark() -> None:
    """In the table of docs/how-to/testing.md, which users take for complete; the settings that need more than a value, too."""
    guide = (Path(__file__).parent.parent / "docs/how-to/testing.md").read_text()
    fixtures = re.findall(
        r"^@pytest\.fixture.*\n(?:async )?def (diamant_\w+)", inspect.getsource(pytest_plugin), re.MULTILINE
    )
    assert len(fixtures) >= 8
    missing = [name for name in fixtures if f"\n| `{name}` |" not in guide]
    marks = [f"\n| `@pytest.mark.{name}" for name in ("diamant(", pytest_plugin.ANY_COMPACTION)]
    assert missing + [text for text in [*marks, "`users=", "`tls=True`"] if text not in guide] == []
