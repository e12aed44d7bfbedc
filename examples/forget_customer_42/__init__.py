"""`make demo`: a shop, customer 42 who asks to be forgotten, and the proof that it was done.

__main__.py     the command: options, the directory, the exit code
story.py        what happens, in order, and what is claimed of it
shop.py         topics and traffic of the shop, by aiokafka
orders.py       the orders as a consumer gets them
copies.py       programs that keep a copy of the customers in SQLite, by confluent-kafka
raw_files.py    searches files without asking the broker, with aiokafka's reader of records
proof.py        certificates: kept, verified by `diamant verify`, tampered with
broker.py       `diamant start` as a process
telling.py      how it is printed, and what becomes of a claim that is not so
"""
