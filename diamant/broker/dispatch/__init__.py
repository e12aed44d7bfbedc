"""From a request to its handler: the services of a node, the table of APIs, and the dispatcher."""
