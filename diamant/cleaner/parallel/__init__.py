"""A round divided among forked processes: they map shares of the log (`shares`), then rewrite its groups (`groups`)."""
