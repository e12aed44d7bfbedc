"""Torture: a broker that is killed, cut off and given a bad disk while clients use it, and a check of all that it answered."""
