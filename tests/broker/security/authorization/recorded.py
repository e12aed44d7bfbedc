"""The recorded responses of a real Kafka, each distinct response once (tests/golden/authorization)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).parents[3] / "golden" / "authorization" / "answers.json"


def write(answers: dict[str, Any], path: Path = RECORDING) -> None:
    """Write the answers by "scenario / client / question"."""
    numbers: dict[str, int] = {}
    by_client: dict[str, dict[str, int]] = {}
    for name, answer in answers.items():
        client, _, question = name.rpartition(" / ")
        by_client.setdefault(client, {})[question] = numbers.setdefault(json.dumps(answer), len(numbers))
    lines = [f"{json.dumps(client)}: {json.dumps(asked)}" for client, asked in by_client.items()]
    parts = ['{"answers": [', ",\n".join(numbers), '],\n"asked": {', ",\n".join(lines), "}}", ""]
    path.write_text("\n".join(parts), encoding="utf-8")


def read(path: Path = RECORDING) -> dict[str, Any]:
    """Read the file that `write` has written."""
    recording = json.loads(path.read_text(encoding="utf-8"))
    return {
        f"{client} / {question}": recording["answers"][number]
        for client, asked in recording["asked"].items()
        for question, number in asked.items()
    }
