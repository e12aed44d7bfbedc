"""The cleaner's modes (`diamant.cleaner.mode`; compared in docs/explanation/cleaner-modes.md) and its runners."""

KAFKA = "kafka"
"""Makes the same decisions as Kafka, and writes the same bytes."""
PROMPT = "prompt"
"""Keeps Kafka's promises to consumers, and removes records as soon as these promises allow."""
MODES = (KAFKA, PROMPT)

KAFKA_4_3, KAFKA_4_4 = KAFKA_VERSIONS = ("4.3", "4.4")
"""The versions that mode kafka can follow (`diamant.cleaner.kafka.version`). They differ in `CleanPlan.high_watermark`."""


def followed_version(mode: str, kafka_version: str) -> str | None:
    """Return the Kafka version to report with a mode: the configured one; None in mode prompt, which follows the newest."""
    return kafka_version if mode == KAFKA else None


INLINE, PROCESS, SPARK = ENGINES = ("inline", "process", "spark")
"""The runners that a request can name."""
