"""Handlers of ACLs, delegation tokens and SCRAM credentials: there are none, and they say so."""
