"""Parts that the coordinators of groups and of transactions share: internal topics and their loading."""
