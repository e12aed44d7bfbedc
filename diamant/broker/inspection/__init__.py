"""Read-only inspections of a Kafka cluster: audits, and explanations of why records are still stored."""
