"""The cleaner's loop: pick a log, plan a round, run it, swap in its outputs, and report."""
