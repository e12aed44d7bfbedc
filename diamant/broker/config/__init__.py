"""Configuration: tables of configurations, their values parsed and checked, and `BrokerConfig`."""
