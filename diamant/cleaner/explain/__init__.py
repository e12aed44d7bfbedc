"""Explanations of why a record is still in a log, and until when: the gates that keep rounds from removing it."""
