"""Records that Kafka 4.3.1 wrote to `__consumer_offsets`; the file says how they were made."""

from __future__ import annotations

import json
from pathlib import Path

_PATH = Path(__file__).parent / "golden" / "groups" / "consumer_offsets_kafka_4.3.1.json"


def consumer_offsets_log() -> bytes:
    """Return the log of the one partition."""
    return bytes.fromhex("".join(json.loads(_PATH.read_text(encoding="utf-8"))["log"]))
