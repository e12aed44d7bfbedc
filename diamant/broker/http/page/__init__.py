"""The web page: views made from templates. `live` sends the changes of a view by server-sent events."""
