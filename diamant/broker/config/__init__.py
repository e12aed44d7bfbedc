"""Configuration: the tables of configurations, and `BrokerConfig`."""
