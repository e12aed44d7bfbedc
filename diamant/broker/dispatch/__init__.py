"""From a request to its handler: the table of APIs and the dispatcher."""
