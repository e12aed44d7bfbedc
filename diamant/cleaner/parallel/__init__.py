"""A round of the compiled engine on several processors: forked processes map shares of the log, and rewrite its groups."""
