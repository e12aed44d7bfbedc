"""Nothing is imported before it is needed: a broker, a command and a client start quickly, and are small."""

from __future__ import annotations

import subprocess
import sys

import pytest

PRINTED = "print([name for name in sys.modules if name.startswith(tuple({unwanted!r}))])\n"
HELP = """
from click.testing import CliRunner
from diamant.broker.cli import main
for words in ([], ["log"]):
    assert "log" in CliRunner().invoke(main, [*words, "--help"]).output
"""
BROKER = """
import urllib.request
from diamant.broker.broker import Broker
with Broker(listen="127.0.0.1:0", diamant_http_listen="127.0.0.1:0") as broker:
    for path in {paths!r}:
        assert urllib.request.urlopen(broker.http_url + path).status == 200
    """
ONE_COMMAND = """
from click.testing import CliRunner
from diamant.broker.cli import main
assert "--listen" in CliRunner().invoke(main, ["start", "--help"]).output
"""
PRODUCES = """
from diamant.broker.broker import Broker
from diamant.broker.dispatch.api_table import load
with Broker(listen="127.0.0.1:0") as broker:
    for key in (0, 3, 18, 19):
        load(broker.services, key)
    """
COMPACTED = """broker.create_topic("t", compact=True)
    broker.call(broker.services.cleaning.service())
    """
STAGING = """
import tempfile
from diamant.cleaner.spark.runner.staging_view import staging_place
from diamant.storage.env.env import RealEnv
with tempfile.TemporaryDirectory() as path:
    place = staging_place(RealEnv(), path, f"file://{path}", [("users", 0)])
    assert place.list_names(bool) == list(place.files(RealEnv())) == []
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        (
            'import diamant\ndiamant.Admin("127.0.0.1:1")\n',
            ["diamant.broker.broker", "aiohttp", "click", "rich", "kio", "numpy", "asyncio"],
        ),
        (
            HELP,
            [
                *("diamant.broker.commands.log.clean", "diamant.broker.commands.log.dump", "diamant.cleaner.offline"),
                "diamant.cleaner.engines.plain_round",
            ],
        ),
        (
            ONE_COMMAND,
            [
                *(
                    "diamant.broker.commands.clusters",
                    "diamant.broker.commands.person",
                    "diamant.broker.commands.testing",
                ),
                "diamant.broker.dispatch.operation_table",
            ],
        ),
        (
            PRODUCES,
            [
                *("diamant.broker.brokers.table", "diamant.broker.security.authorization.authorizer", "difflib"),
                *(
                    "diamant.broker.dispatch.operation_table",
                    "diamant.broker.node.superseded_checks",
                    "diamant.progress",
                ),
                *("diamant.cleaner.facts", "diamant.cleaner.rules.eligibility", "diamant.cleaner.runners", "ipaddress"),
                *("diamant.storage.directory.directory_copy", "pathlib"),
            ],
        ),
        (
            BROKER.format(paths=[]),
            [
                *(
                    "aiohttp",
                    "prometheus_client",
                    "kio",
                    "diamant.broker.metrics.coordinators",
                    "diamant.broker.faults",
                ),
                *("diamant.broker.erasure", "diamant.broker.operations.broker_state.broker_clock"),
            ],
        ),
        (
            BROKER.format(paths=["/"]),
            ["diamant.broker.http.page.views.one_topic", "diamant.broker.operations.records", "prometheus_client"],
        ),
        (
            BROKER.format(paths=["/metrics"]),
            ["diamant.broker.operations.broker_state.clock_operations", "diamant.broker.faults.fault_operations"],
        ),
        (
            BROKER.format(paths=[]) + COMPACTED,
            [
                *("diamant.broker.operations.compactions.compactions", "diamant.cleaner.on_demand.compaction"),
                "diamant.cleaner.on_demand.header_counts",
            ],
        ),
        ("import diamant.broker.erasure.erase.erasures\n", ["diamant.cleaner.spark", "pyarrow", "pyspark"]),
        (STAGING, ["pyarrow", "pyspark"]),
    ],
    ids=[
        "Admin",
        "help",
        "one command",
        "Produce and what comes before",
        "idle broker",
        "page",
        "metrics",
        "cleaner",
        "erasures",
        "local staging location",
    ],
)
def test_nothing_is_imported_before_it_is_needed(program: str, unwanted: list[str]) -> None:
    """A web server comes with the first request, an endpoint with its own first request."""
    command = [sys.executable, "-c", f"import sys\n{program}{PRINTED.format(unwanted=unwanted)}"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (found.returncode, found.stdout) == (0, "[]\n"), found.stderr
