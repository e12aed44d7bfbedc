"""The topics of a broker: their registry, creation, growth, configurations and deletion."""
