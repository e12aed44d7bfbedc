"""SASL: the authentication of clients. Mechanisms are state machines over bytes, without sockets or clocks."""
