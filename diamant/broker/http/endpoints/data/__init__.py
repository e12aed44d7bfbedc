"""Topics and their records over HTTP."""
