"""Authorization: ACLs, the permissions that each API needs, and the decisions of Kafka's StandardAuthorizer."""
