"""The HTTP server: routes, jobs, tokens, OpenAPI."""
