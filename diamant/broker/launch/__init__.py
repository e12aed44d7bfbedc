"""Commands that run a broker: `diamant start`, and `diamant exec`, which runs it beside another command."""
