"""Control of the brokers of one process: down and up, lag, and leadership of partitions."""
