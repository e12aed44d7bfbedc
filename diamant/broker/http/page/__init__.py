"""The web page: views made from templates. `live` sends changes to a view as server-sent events."""
