"""Log segments and their three indexes."""
