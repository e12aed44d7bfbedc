"""Consumer groups: two pure state machines, and the coordinator that runs them."""
