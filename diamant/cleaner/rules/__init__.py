"""The rules of a cleaning round, as values and pure functions: plan, grouping, eligibility, record kinds and fates, retention."""
