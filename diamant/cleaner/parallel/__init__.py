"""A round divided among forked processes, which map shares of the log (`shares`), then rewrite its groups (`groups`)."""
