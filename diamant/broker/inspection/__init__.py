"""Looks at a Kafka cluster that change nothing: audits, and explanations of why records are still there."""
