"""The redaction of records: the job, its steps and its certificate."""
