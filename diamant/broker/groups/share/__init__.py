"""Share groups (KIP-932) as values: their members, and their partitions' records in flight. No sockets, no clocks."""
