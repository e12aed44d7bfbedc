"""Authorization: ACLs, what each API needs, and the decisions of Kafka's StandardAuthorizer."""
