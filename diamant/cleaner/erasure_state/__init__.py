"""The state of erasures on disk: intents, the locations of a key's records, and pending erasures."""
