"""Security: authentication, authorization, quotas, TLS and the audit log."""
