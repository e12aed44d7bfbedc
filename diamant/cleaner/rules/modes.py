"""The modes of the cleaner, `diamant.cleaner.mode` (differences: docs/explanation/cleaner-modes.md), and its runners."""

KAFKA = "kafka"
"""Decides and writes like Kafka 4.3, byte for byte."""
PROMPT = "prompt"
"""Keeps Kafka's promises to consumers, and removes records as soon as these allow."""
MODES = (KAFKA, PROMPT)

INLINE, PROCESS, SPARK = ENGINES = ("inline", "process", "spark")
"""The runners that a request can name."""
