"""What the coordinators of groups and of transactions share: their topics and how they use them."""
