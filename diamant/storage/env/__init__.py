"""The operating system: real, in memory and overlaid; clocks, locks, open files."""
