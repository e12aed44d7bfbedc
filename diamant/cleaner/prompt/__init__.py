"""The memory of mode prompt about segments: facts, key filters, quarantine."""
