"""People: maps their data, finds and shows a person's records in all topics, and forgets the person with one certificate, the
paper."""
