"""The group coordinator: loads and deletes groups, and commits, expires and removes their offsets."""
