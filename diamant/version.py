"""The version of Diamant."""

__version__ = "0.2.0"
