"""Handlers of SASL, ACLs and SCRAM credentials, and of delegation tokens, which are refused."""
