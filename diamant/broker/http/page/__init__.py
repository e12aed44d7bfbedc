"""The page: views for people, made of templates; `live` sends what a view says has changed, by server-sent events."""
