"""Handlers for SASL, ACLs and SCRAM credentials, and for delegation tokens, which are refused."""
