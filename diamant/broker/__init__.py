"""The broker: its composition root and command line are here, the rest is in folders."""
