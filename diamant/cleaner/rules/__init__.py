"""The rules of a round, as values and pure functions: plan, eligibility, fate of a record, retention."""
