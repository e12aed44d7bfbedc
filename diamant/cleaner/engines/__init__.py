"""The engines of a round: offset map, Python engine, compiled engine."""
