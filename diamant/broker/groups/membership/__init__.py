"""Services that answer the members of groups of all protocols, write their records, and run their timers."""
