"""Reading and writing segments for the cleaner and the tools."""
