"""Share groups (KIP-932) as values: their members, and the records in flight of their partitions. No sockets, no clocks."""
