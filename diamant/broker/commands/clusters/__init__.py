"""Commands on clusters of other brokers than Diamant."""
