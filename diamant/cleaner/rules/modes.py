"""The modes of the cleaner, `diamant.cleaner.mode` (docs/explanation/cleaner-modes.md has their differences), and its runners."""

KAFKA = "kafka"
"""The mode that decides and writes as Kafka 4.3 does, to the byte."""
PROMPT = "prompt"
"""The mode that keeps Kafka's promises to consumers and removes sooner what may go."""
MODES = (KAFKA, PROMPT)

INLINE, PROCESS, SPARK = ENGINES = ("inline", "process", "spark")
"""The runners that can be asked for by name."""
