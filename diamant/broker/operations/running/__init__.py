"""The broker as it runs: its clock, which is moved from deadline to deadline, its status, its history."""
