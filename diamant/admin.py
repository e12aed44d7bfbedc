"""`diamant.Admin` and its errors: the client for the operations that Kafka lacks."""

from diamant.broker.client.admin import Admin as Admin
from diamant.broker.client.admin import AdminError as AdminError
from diamant.broker.client.bootstrap import DEFAULT_BOOTSTRAP as DEFAULT_BOOTSTRAP
