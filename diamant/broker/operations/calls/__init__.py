"""Parts that operations share: the progress of a call, work in threads, the way between two loops."""
