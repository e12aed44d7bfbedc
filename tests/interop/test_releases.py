"""Directories of releases of Kafka and of Diamant, opened in every order and back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("check_releases_with_kafka.py")
NEEDED = {"--kafka": "KAFKA_4_3", "--newer-kafka": "KAFKA_4_4"}
OTHERS = {"--older-kafka": ("KAFKA_3_9",), "--older-diamant": ("DIAMANT_0_1", "DIAMANT_0_2")}


@pytest.mark.long
def test_each_release_opens_the_directories_of_the_others_or_refuses_them(tmp_path: Path) -> None:
    """What was used by one is complete in another, and back where it was made; too new a directory is refused by its level.

    Environment variables name the launchers of Kafka that check_with_kafka.py describes, and commands of earlier versions of
    Diamant (tests/golden/directories/README.md says how to make those).
    """
    if missing := [name for name in NEEDED.values() if name not in os.environ]:
        pytest.skip(f"{missing} name no launchers of Kafka")
    options = [word for option, name in NEEDED.items() for word in (option, os.environ[name])]
    for option, names in OTHERS.items():
        options += [word for name in names if name in os.environ for word in (option, os.environ[name])]
    command = [sys.executable, str(PROGRAM), *options, "--work", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
