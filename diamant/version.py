"""The version of Diamant."""

__version__ = "0.3.0"
