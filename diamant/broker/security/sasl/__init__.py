"""SASL: clients prove who they are. Mechanisms are state machines of bytes, without sockets and clocks of their own."""
