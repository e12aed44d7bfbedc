"""The page: views for people, made of templates, without anything from elsewhere."""
