"""The loop of the cleaner: pick a log, plan, run, swap, report."""
