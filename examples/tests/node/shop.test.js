import assert from "node:assert";
import { test } from "node:test";
import kafkajs from "kafkajs";

test("a price is sent and read", async () => {
  const kafka = new kafkajs.Kafka({ brokers: [process.env.KAFKA_BOOTSTRAP_SERVERS] });
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic: "prices", messages: [{ key: "apple", value: "0.40" }] });
  await producer.disconnect();

  const consumer = kafka.consumer({ groupId: "shop" });
  await consumer.subscribe({ topics: ["prices"], fromBeginning: true });
  const price = await new Promise((read) =>
    consumer.run({ eachMessage: async ({ message }) => read(message.value.toString()) }),
  );
  await consumer.disconnect();
  assert.equal(price, "0.40");
});
