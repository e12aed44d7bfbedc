"""Share groups (KIP-932) as plain state, without sockets and clocks: members, and the records in flight of partitions."""
