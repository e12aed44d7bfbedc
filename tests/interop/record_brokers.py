"""Record what three real brokers answer to the script of tests/broker/brokers, in tests/golden/brokers/answers.json.

Run by hand; pytest does not collect it. The launcher is that of check_with_kafka.py: `LAUNCHER tool CLASS` runs a class of Kafka.

    python tests/interop/record_brokers.py --kafka ./kafka-launcher

Four processes: a controller, and brokers 1, 2 and 3 in the racks r1, r2 and r3.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from programs import stop

from tests.broker.brokers.script import STEPS
from tests.broker.brokers.step_run import BROKERS, run_steps
from tests.ports import ReservedPort

RECORDING = Path(__file__).parents[1] / "golden" / "brokers" / "answers.json"
CLUSTER_ID = "AbCdEfGhIjKlMnOpQrStUg"
CONTROLLER = 100

SETTINGS = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "replica.fetch.wait.max.ms": "50",
    "controlled.shutdown.max.retries": "3",
}


class RealBrokers:
    """Three brokers of Apache Kafka and their controller, under a directory."""

    def __init__(self, launcher: list[str], directory: Path) -> None:
        self._launcher = launcher
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._stopped: set[int] = set()
        self._ports = {node: ReservedPort() for node in (CONTROLLER, *BROKERS)}
        for node in (CONTROLLER, *BROKERS):
            self._format(node)
            self._start(node)
        for node in BROKERS:
            self._wait(node)

    def address(self, broker: int) -> tuple[str, int]:
        """Return host and port of a broker."""
        return "127.0.0.1", self._ports[broker].number

    def wait_settled(self) -> None:
        """Wait a moment."""
        time.sleep(0.3)

    def down(self, broker: int) -> None:
        """Stop a broker in order."""
        stop(self._processes.pop(broker))

    def hard(self, broker: int) -> None:
        """Stop the process in its tracks: its port stays open."""
        self._processes[broker].send_signal(signal.SIGSTOP)
        self._stopped.add(broker)

    def up(self, broker: int) -> None:
        """Start a broker, or let its process run again."""
        if broker in self._stopped:
            self._stopped.discard(broker)
            self._processes[broker].send_signal(signal.SIGCONT)
        else:
            self._start(broker)
            self._wait(broker)

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _config(self, node: int) -> Path:
        return self._directory / f"{node}.properties"

    def _format(self, node: int) -> None:
        port, controller_port = self._ports[node].number, self._ports[CONTROLLER].number
        is_controller = node == CONTROLLER
        listener = f"{'CONTROLLER' if is_controller else 'PLAINTEXT'}://127.0.0.1:{port}"
        properties = {
            **SETTINGS,
            "process.roles": "controller" if is_controller else "broker",
            "node.id": node,
            "listeners": listener,
            "advertised.listeners": listener,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "log.dirs": self._directory / str(node),
            **({} if is_controller else {"broker.rack": f"r{node}", "inter.broker.listener.name": "PLAINTEXT"}),
        }
        self._config(node).write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        how = "--standalone" if is_controller else "--no-initial-controllers"
        tool = [*self._launcher, "tool", "kafka.tools.StorageTool", "format"]
        subprocess.run(
            [*tool, "-t", CLUSTER_ID, how, "-c", str(self._config(node))], check=True, stdout=subprocess.DEVNULL
        )

    def _start(self, node: int) -> None:
        with (self._directory / f"{node}.log").open("ab") as log:
            command = [*self._launcher, "tool", "kafka.Kafka", str(self._config(node))]
            self._processes[node] = subprocess.Popen(command, stdout=log, stderr=log)

    def _wait(self, node: int) -> None:
        subprocess.run([*self._launcher, "ready", str(self._ports[node].number)], check=True, timeout=120)


def main() -> None:
    """Start the brokers, run the script, keep the answers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kafka", required=True, type=shlex.split, metavar="COMMAND", help="launcher of Apache Kafka")
    parser.add_argument("--output", type=Path, default=RECORDING, help="default: the recording that the suite compares")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="diamant-brokers-") as directory:
        brokers = RealBrokers(options.kafka, Path(directory))
        answers: dict[str, Any] = {}
        try:
            run_steps(brokers, STEPS, answers)
        finally:
            brokers.close()
            lines = [f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items()]
            options.output.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
