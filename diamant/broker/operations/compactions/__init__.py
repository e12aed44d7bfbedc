"""Compactions requested by a call or by a configuration, their progress, and figures of topics."""
