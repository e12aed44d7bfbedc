"""The command line: a user's error is one line and exit code 1."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.launch.launch_settings import make_config
from diamant.broker.launch.start import _http_line, _watch
from diamant.storage.config_key import ConfigError


def test_a_bad_configuration_is_one_line() -> None:
    """The line names the configuration and what is allowed; there is no traceback."""
    result = CliRunner().invoke(main, ["start", "--set", "log.segment.bytes=1"])
    assert result.exit_code == 2
    assert result.stderr == (
        "diamant: Invalid value 1 for configuration log.segment.bytes: Value must be at least 1048576\n"
    )


def test_a_setting_without_a_value_is_refused() -> None:
    """--set takes NAME=VALUE and says so."""
    result = CliRunner().invoke(main, ["start", "--set", "num.partitions"])
    assert result.exit_code == 2
    assert "expected NAME=VALUE" in result.stderr


def test_options_win_over_the_file(tmp_path: Path) -> None:
    """--set overrides --config; --listen and --data override both."""
    file = tmp_path / "server.properties"
    file.write_text(
        "node.id=3\nnum.partitions=2\nlisteners=PLAINTEXT://:1\nadvertised.listeners=PLAINTEXT://far:1\nlog.dirs=/a\n"
    )
    config = make_config(str(file), ["num.partitions=5"], ["127.0.0.1:0"], "/b")
    assert (config.node_id, config.num_partitions, config.data_dir) == (3, 5, "/b")
    assert [str(listener) for listener in config.advertised_listeners] == ["PLAINTEXT://127.0.0.1:0"]


def test_values_may_hold_equals_signs() -> None:
    """Only the first = of --set separates name and value."""
    assert make_config(None, ["broker.rack=a=b"], [], None).broker_rack == "a=b"
    with pytest.raises(ConfigError):
        make_config(None, ["=1"], [], None)


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    """A port in use gives exit code 1 and one line, and releases the data directory."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = run_start("--listen", address, "--data", str(tmp_path / "data"))
    assert result.returncode == 1
    assert result.stderr == (
        f"diamant: {address}: Address already in use. "
        "Is another broker running? --listen takes another address, port 0 a free port.\n"
    )


@pytest.mark.slow
def test_a_link_to_nowhere_is_one_line(tmp_path: Path) -> None:
    """A dangling link, as to an unmounted disk, gives exit code 1 and a likely cause; nothing is created."""
    (tmp_path / "data").symlink_to(tmp_path / "disk" / "data")
    result = run_start("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    assert (result.returncode, [path.name for path in tmp_path.iterdir()]) == (1, ["data"])
    assert "not a broken link. Is its disk mounted?\n" in result.stderr


@pytest.mark.slow
def test_a_directory_in_use_is_one_line(tmp_path: Path) -> None:
    """A second broker on one data directory exits with 1 and one line that names the directory."""
    with Broker(data_dir=tmp_path):
        result = run_start("--listen", "127.0.0.1:0", "--data", str(tmp_path))
    assert result.returncode == 1
    assert result.stderr == (
        f"diamant: {tmp_path}/.lock: in use by another process. "
        "Is another broker running on it? --data takes another directory\n"
    )
    assert len(result.stderr.splitlines()) == 1


def test_a_broker_says_where_it_listens_and_stops_cleanly(tmp_path: Path) -> None:
    """The addresses are printed once Kafka and HTTP answer; SIGTERM stops the broker with exit code 0."""
    command = [sys.executable, "-m", "diamant.broker.cli", "start", "--listen", "127.0.0.1:0", "--data", str(tmp_path)]
    command += ["--set", "diamant.http.listen=127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        found = re.fullmatch(r"Diamant listens on 127\.0\.0\.1:(\d+), data in (.*)\n", line)
        assert found, process.communicate(timeout=60)
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=60).close()
        found = re.fullmatch(r"Metrics, health and /v1 at (http://127\.0\.0\.1:\d+)\n", process.stdout.readline())
        assert found
        with urlopen(f"{found[1]}/health", timeout=60) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert (tmp_path / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("127.0.0.1:0", r"Metrics, health and /v1 at http://127\.0\.0\.1:\d+"),
        (
            "0.0.0.0:0",
            r"Metrics, health and /v1 at 0\.0\.0\.0:(\d+), every interface of this machine, here as http://127\.0\.0\.1:\1",
        ),
        ("", ""),
    ],
)
async def test_the_printed_address_of_http_is_the_one_bound(tmp_path: Path, listen: str, expected: str) -> None:
    """HTTP on all interfaces is printed as such, not as loopback."""
    async with Broker(data_dir=tmp_path, diamant_http_listen=listen) as broker:
        assert re.fullmatch(expected, _http_line(broker).lstrip("\n"))


@pytest.mark.slow
def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Even after SIGKILL of the parent, the broker stops in order and closes the shared pipe."""
    runner = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-m', 'diamant.broker.cli', 'start', '--exit-with-parent', *sys.argv[1:]])\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", runner, "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    command += ["--set", "diamant.http.listen="]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline().startswith("Diamant listens on")
        process.kill()
        _, errors = process.communicate(timeout=60)
    assert f"the process that started this one ({process.pid}) has ended: stopping" in errors
    assert errors.endswith("stopped\n")
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


async def test_a_parent_that_has_gone_already() -> None:
    """A parent that ends before the broker's first check also stops the broker."""
    parent = await asyncio.create_subprocess_exec("true")
    await parent.wait()
    stop = asyncio.Event()
    _watch(parent.pid, stop)
    assert stop.is_set()


@pytest.mark.slow
def test_modules_are_no_garbage(tmp_path: Path) -> None:
    """A broker process enables the garbage collector, and freezes what startup has loaded."""
    program = (
        "import atexit, gc, sys; from diamant.broker.cli import main;"
        "atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 10_000)); main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, "start", "--listen", "127.0.0.1:0", "--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline().startswith("Diamant listens on")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert output.splitlines()[-1] == "True True"


def run_start(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `diamant start` in its own process, to its end."""
    command = [sys.executable, "-m", "diamant.broker.cli", "start", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_help_and_version_need_no_broker() -> None:
    """--help and --version start nothing."""
    assert "diamant" in CliRunner().invoke(main, ["--version"]).stdout
    assert "--listen" in CliRunner().invoke(main, ["start", "--help"]).stdout


def test_a_port_alone_is_no_address() -> None:
    """The error shows the form of an address."""
    result = CliRunner().invoke(main, ["start", "--listen", "9095"])
    assert result.exit_code == 2
    assert result.stderr == "diamant: --listen 9095: expected HOST:PORT, e.g. 127.0.0.1:9095\n"


@pytest.mark.slow
def test_every_interface_is_warned_of(tmp_path: Path) -> None:
    """The warning comes before the listener opens: here the port is taken, so the start ends there."""
    with socket.create_server(("0.0.0.0", 0)) as other:
        address = f"0.0.0.0:{other.getsockname()[1]}"
        result = run_start("--listen", address, "--data", str(tmp_path / "data"))
    assert result.returncode == 1
    assert f"PLAINTEXT://{address} is open to any client: it has neither TLS nor SASL" in result.stderr
