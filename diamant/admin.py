"""`diamant.Admin`, the client for the operations that Kafka lacks, and its errors."""

from diamant.broker.client.admin import Admin as Admin
from diamant.broker.client.admin import AdminError as AdminError
from diamant.broker.client.bootstrap import DEFAULT_BOOTSTRAP as DEFAULT_BOOTSTRAP
