"""The erasure of keys: the job, its steps and its certificates."""
