"""Forecasts: what a cleaning would remove under other settings."""
