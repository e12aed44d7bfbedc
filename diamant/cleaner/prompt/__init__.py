"""The memory of mode `prompt`, which deletes in time: facts of segments, key filters, quarantine."""
