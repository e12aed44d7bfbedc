"""Tables of configurations, and `BrokerConfig`."""
