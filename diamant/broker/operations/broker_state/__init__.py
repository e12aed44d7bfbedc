"""The running broker: its clock, which moves from deadline to deadline, its status and its history."""
