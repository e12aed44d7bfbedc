"""The knowledge that mode `prompt` needs to delete in time: facts about segments, key filters, quarantine."""
