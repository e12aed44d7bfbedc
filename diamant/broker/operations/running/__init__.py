"""The broker as it runs: its clock, its status, its history."""
