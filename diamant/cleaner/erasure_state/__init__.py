"""Erasures on disk: intents, the places of a key, pending erasures."""
