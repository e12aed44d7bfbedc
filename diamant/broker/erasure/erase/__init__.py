"""Erasing keys: the job, its steps, its certificate."""
