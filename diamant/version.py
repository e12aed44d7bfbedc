"""The version of Diamant."""

__version__ = "0.1.0"
