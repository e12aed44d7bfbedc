"""Compactions on request, by a call or a configuration, with their progress, and figures of topics."""
