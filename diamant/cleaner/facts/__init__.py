"""The memory of mode `prompt`, which deletes in time: facts about segments, key filters, quarantine."""
