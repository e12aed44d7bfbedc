"""Share partitions at work: their state topic, their locks, and the sessions of their members."""
