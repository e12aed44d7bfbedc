"""The group coordinator: loading, commits of offsets, their expiry and removal, deletion of groups."""
