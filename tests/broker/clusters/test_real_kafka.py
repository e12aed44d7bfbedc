"""What tests start of a Kafka ends with them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.broker.clusters.real_kafka import real_kafka

JAVA = """#!/bin/sh
case "$*" in
*StorageTool*) ;;
*/1.properties) until [ -e "$PLACE/began" ]; do sleep 0.01; done; echo "no memory"; exit 1 ;;
*) exec 3>"$PLACE/alive"; : >"$PLACE/began"; exec sleep 60 ;;
esac
"""
"""A JVM whose first broker fails once the second runs, which holds a pipe open for as long as it lives."""


def test_a_cluster_that_does_not_start_leaves_no_broker_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that run are ended when one fails, and its output is in the error."""
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "kafka-clients-0.jar").touch()
    (tmp_path / "java").write_text(JAVA)
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    monkeypatch.setenv("PLACE", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(AssertionError, match="no memory"), real_kafka(tmp_path, brokers=2):
            pass
        assert os.read(alive, 1) == b"", "it has no writer any more; BlockingIOError if there is one"
    finally:
        os.close(alive)
