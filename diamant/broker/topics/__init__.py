"""The topics of a broker: which there are, their creation, growth, configurations and deletion."""
