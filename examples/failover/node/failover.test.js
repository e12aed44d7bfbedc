import assert from "node:assert";
import { test } from "node:test";
import kafkajs from "kafkajs";

const kafka = new kafkajs.Kafka({
  brokers: process.env.DIAMANT_BOOTSTRAP_SERVERS.split(","),
  logLevel: kafkajs.logLevel.NOTHING,
});
const range = (first, end) => Array.from({ length: end - first }, (_, index) => String(first + index));

/** Carry out an operation, and return the new leader of the partition that it moved. */
async function brokers(operation, body = {}) {
  const answer = await fetch(`${process.env.DIAMANT_HTTP_URL}/v1/brokers/${operation}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const report = await answer.json();
  assert.equal(answer.status, 200, report.error);
  return report.moved[0]?.new_leader;
}

async function withProducer(use, retry) {
  const producer = kafka.producer({ idempotent: !retry, retry, createPartitioner: kafkajs.Partitioners.DefaultPartitioner });
  await producer.connect();
  try {
    await use((topic, values) => producer.send({ topic, messages: values.map((value) => ({ value })) }));
  } finally {
    await producer.disconnect();
  }
}

/** Read with a group until there are `count` values; call `atHalf` when half of them are read. */
async function read(topic, groupId, count, atHalf = async () => {}) {
  // kafkajs looks for another coordinator only when it starts again, after these retries.
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 500, retry: { retries: 2 } });
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  const values = new Map();
  await new Promise((done, failed) =>
    consumer.run({
      eachMessage: async ({ message }) => {
        if (values.has(message.offset)) return; // read again after a rebalance
        values.set(message.offset, message.value.toString());
        if (values.size === count / 2) await atHalf().catch(failed);
        if (values.size === count) done();
      },
    }),
  );
  await consumer.disconnect();
  return [...values.values()];
}

test("nothing is lost while the leader moves", async () => {
  await withProducer(async (send) => {
    for (const value of range(0, 20)) await send("orders", [value]);
    await brokers("shuffle", { topic: "orders" });
    for (const value of range(20, 40)) await send("orders", [value]);
  });
  assert.deepEqual(await read("orders", "all", 40), range(0, 40));
});

test("a group reads on when a broker goes down", async () => {
  await withProducer((send) => send("payments", range(0, 10)));
  let leader;
  const values = await read("payments", "readers", 20, async () => {
    leader = await brokers("shuffle", { topic: "payments" });
    await brokers(`${leader}/down`);
    await withProducer((send) => send("payments", range(10, 20)));
  }).finally(() => brokers(`${leader}/up`));
  assert.deepEqual(values, range(0, 20));
});

test("too few in-sync replicas are an error", async () => {
  await withProducer(async (send) => {
    await send("ledger", ["1"]);
    const leader = await brokers("shuffle", { topic: "ledger" });
    const others = [1, 2, 3].filter((broker) => broker !== leader);
    for (const broker of others) await brokers(`${broker}/down`);
    try {
      await assert.rejects(send("ledger", ["2"]), /in-sync replicas/);
    } finally {
      for (const broker of others) await brokers(`${broker}/up`);
    }
  }, { retries: 2 });
});
