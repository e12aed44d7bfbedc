"""What mode prompt remembers of segments: facts, key filters, quarantine."""
