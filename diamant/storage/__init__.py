"""One log directory in Apache Kafka's own file formats: segments, indexes, producer state, recovery, the metadata log.

Every file call and every clock reading goes through `Env`, so that all of it runs on a file system that loses power on
demand. Offsets are log offsets, positions are bytes in a file, times are milliseconds since the Unix epoch.

Where to look, from the ground up:

* `env` `memory_env` `clock` `errors`: the operating system, real and simulated, and how it fails.
* `names` `uuid_text`: every file and directory name, and the text form of topic ids.
* `offset_index` `time_index` `index_file` `txn_index`: the three indexes beside a segment's `.log`.
* `producer_state` `producer_snapshot`: idempotence and open transactions of one partition, and their files.
* `checkpoints` `meta_properties`: the small text files.
"""
