"""The transaction coordinator: producers with a transactional id, and their markers."""
