"""Parts shared by all views: templates, static files, live updates."""
