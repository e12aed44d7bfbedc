"""The transaction coordinator: producers with a transactional id and their record in `__transaction_state`."""
