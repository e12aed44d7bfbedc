"""A round as Spark jobs, its outputs and their staging location."""
