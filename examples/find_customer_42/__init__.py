"""`make demo-spark`: customer 42 is looked for in all topics at once by Apache Spark, erased by way of it, and that is proved.

__main__.py     the command: options, the directory, the exit code
story.py        what happens, in order, and what is claimed of it
records.py      topics and records of two services, by aiokafka and by confluent-kafka
commands.py     `diamant spark find`, and what it found

Broker, certificates, the search of raw files and how the story is told are those of `examples/forget_customer_42`.
"""
