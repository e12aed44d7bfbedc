"""Keeps the total sales of each fruit in a table, and tells each new total."""

import os

import faust

app = faust.App(
    "shop",
    broker=f"kafka://{os.environ['KAFKA_BOOTSTRAP_SERVERS']}",
    store="memory://",
    topic_partitions=1,
    web_enabled=False,
)
sales = app.topic("sales", key_type=str, value_type=int)
told = app.topic("told", key_type=str, value_type=int)
totals = app.Table("totals", default=int)


@app.agent(sales)
async def add(stream: faust.Stream[int]) -> None:
    """Add a sale to its fruit's total."""
    async for fruit, number in stream.items():
        totals[fruit] += number
        await told.send(key=fruit, value=totals[fruit])
