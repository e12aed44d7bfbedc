"""What a round may do, as values and pure functions: plan, eligibility, fate of a record, retention."""
