"""Delivery of records from share partitions: the state topic, the record locks, and the members' sessions."""
