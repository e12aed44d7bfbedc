"""Forecasts of what the cleaner would remove under other settings."""
