"""Configuration: the tables of configurations, the parsing and checking of values, and `BrokerConfig`."""
