"""The rules of a round, as values and pure functions: plan, grouping, eligibility, fate of a record, retention."""
