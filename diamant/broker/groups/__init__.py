"""Consumer and share groups: pure state machines, and the coordinator that runs them."""
