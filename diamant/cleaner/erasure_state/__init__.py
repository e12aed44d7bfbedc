"""An erasure on disk: its intent, the places of its key, the pending erasures."""
