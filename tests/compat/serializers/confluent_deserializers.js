// Reads a topic from the start with kafkajs, and its values with the deserializers of @confluentinc/schemaregistry.
//
// confluent_deserializers.js read avro|json|protobuf[-header] BOOTSTRAP REGISTRY TOPIC

const { AvroDeserializer, JsonDeserializer, ProtobufDeserializer, SchemaRegistryClient, SerdeType } =
  require('@confluentinc/schemaregistry');
const { toJson } = require('@bufbuild/protobuf');
const { Kafka, logLevel } = require('kafkajs');

const [, , , named, bootstrap, registry, topic] = process.argv;
const kind = named.split('-')[0];
const classes = { avro: AvroDeserializer, json: JsonDeserializer, protobuf: ProtobufDeserializer };

async function main() {
  const client = new SchemaRegistryClient({ baseURLs: [registry] });
  const deserializer = new classes[kind](client, SerdeType.VALUE, {});
  const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR });
  const admin = kafka.admin();
  await admin.connect();
  const [{ high }] = await admin.fetchTopicOffsets(topic);
  await admin.disconnect();
  const consumer = kafka.consumer({ groupId: `js-${topic}-${Date.now()}` });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((resolve, reject) => {
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ message }) => {
        try {
          let value = await deserializer.deserialize(topic, message.value, message.headers);
          if (kind === 'protobuf') {
            const types = deserializer.fileRegistry;
            value = toJson(types.getMessage(value.$typeName), value, { registry: types, useProtoFieldName: true });
          }
          console.log(JSON.stringify(value));
          if (Number(message.offset) === Number(high) - 1) resolve();
        } catch (error) {
          reject(error);
        }
      },
    });
  });
  await consumer.disconnect();
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
