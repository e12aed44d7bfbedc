"""Divides a round among forked processes, which map shares of the log (`shares`) and then rewrite its groups (`groups`)."""
