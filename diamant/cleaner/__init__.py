"""The log cleaner: the rules of a round, its engines and runners, and proofs of what is gone."""
