"""Redacting records: the job, its steps, its certificate."""
