"""The group coordinator: loading, commits of offsets, their expiry and removal, and deletion of groups."""
