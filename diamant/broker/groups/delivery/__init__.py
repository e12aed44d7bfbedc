"""Share partitions at work: their state topic, their locks, the sessions of their members."""
