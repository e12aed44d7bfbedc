"""Pure decisions about KIP-848 groups: which records and timers result when a member sends a heartbeat or leaves."""
