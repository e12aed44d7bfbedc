"""The page: views for people, made of templates; `live` sends what changes, by server-sent events."""
