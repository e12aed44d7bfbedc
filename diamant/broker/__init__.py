"""The broker: composition root and command line here, the rest in folders."""
