"""The running broker: its clock, which can be moved from deadline to deadline, its status, its history."""
