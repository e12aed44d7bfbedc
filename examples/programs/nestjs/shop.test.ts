import "reflect-metadata";
import assert from "node:assert";
import { test } from "node:test";
import { Controller, Module } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { EventPattern, MicroserviceOptions, Payload, Transport } from "@nestjs/microservices";
import { Kafka, logLevel } from "kafkajs";

const client = { brokers: [process.env.KAFKA_BOOTSTRAP_SERVERS!], logLevel: logLevel.NOTHING };
const prices: string[] = [];

@Controller()
class Shop {
  @EventPattern("prices")
  onPrice(@Payload() price: string) {
    prices.push(price);
  }
}

@Module({ controllers: [Shop] })
class ShopModule {}

function shop() {
  return NestFactory.createMicroservice<MicroserviceOptions>(ShopModule, {
    logger: false,
    transport: Transport.KAFKA,
    options: { client: { ...client, retry: { retries: 3 } }, consumer: { groupId: "shop" }, subscribe: { fromBeginning: true } },
  });
}

test("a service fails while nobody has created its topic, and works when it is there", async () => {
  const kafka = new Kafka(client);
  const failing = await shop();
  await assert.rejects(failing.listen(), { type: "UNKNOWN_TOPIC_OR_PARTITION" });
  await failing.close();

  const admin = kafka.admin();
  await admin.connect();
  assert.deepEqual(await admin.listTopics(), []);
  await admin.createTopics({ topics: [{ topic: "prices" }] });
  await admin.disconnect();

  const service = await shop();
  await service.listen();
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic: "prices", messages: [{ key: "apple", value: "0.40" }] });
  await producer.disconnect();
  for (const end = Date.now() + 60_000; prices.length === 0 && Date.now() < end; ) {
    await new Promise((resume) => setTimeout(resume, 50));
  }
  await service.close();
  assert.deepEqual(prices, ["0.40"]);
});
