"""The group coordinator: members, offsets and their record in `__consumer_offsets`."""
