"""How the cleaner may decide: `diamant.cleaner.mode`. What differs stands in docs/compaction.md."""

KAFKA = "kafka"
"""The mode that decides and writes as Kafka 4.3 does, to the byte."""
PROMPT = "prompt"
"""The mode that keeps Kafka's promises to consumers and removes sooner what may go."""
MODES = (KAFKA, PROMPT)
