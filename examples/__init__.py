"""Programs that use Diamant as anybody would: by its commands, its HTTP and real Kafka clients."""
