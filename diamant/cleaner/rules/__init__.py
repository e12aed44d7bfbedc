"""The rules of a round, as values and pure functions: plan, grouping, eligibility, kinds and fate of a record, retention."""
