"""Commands that run a broker: `diamant start`, and `diamant exec`, which runs it for as long as another command."""
