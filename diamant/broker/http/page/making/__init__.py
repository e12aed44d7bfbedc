"""The means of all views: templates, files, and parts that are sent as they change."""
