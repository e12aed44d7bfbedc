import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes three customers with the serializer of Apicurio or of AWS Glue, or reads a topic from the start with its deserializer. */
public class Serializers {
    static final String SCHEMA = """
        {"type": "record", "name": "Customer", "namespace": "shop", "fields": [
          {"name": "id", "type": "long"},
          {"name": "email", "type": "string"},
          {"name": "name", "type": ["null", "string"], "default": null}]}""";

    static final List<String> NAMES = List.of("Ada", "Bob", "Cleo");

    public static void main(String[] words) throws Exception {
        String task = words[0], kind = words[1], topic = words[4];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[2]);
        if (kind.startsWith("apicurio")) {
            settings.put("apicurio.registry.headers.enabled", String.valueOf(kind.equals("apicurio-headers")));
            settings.put("apicurio.registry.url", words[3] + "/apis/registry/v2");
            settings.put("apicurio.registry.auto-register", "true");
            settings.put("value.serializer", "io.apicurio.registry.serde.avro.AvroKafkaSerializer");
            settings.put("value.deserializer", "io.apicurio.registry.serde.avro.AvroKafkaDeserializer");
        } else {
            String of = "com.amazonaws.services.schemaregistry.";
            settings.put("endpoint", words[3]);
            settings.put("region", "eu-central-1");
            settings.put("dataFormat", "AVRO");
            settings.put("avroRecordType", "GENERIC_RECORD");
            settings.put("compression", kind.equals("glue-zlib") ? "ZLIB" : "NONE");
            settings.put("value.serializer", of + "serializers.GlueSchemaRegistryKafkaSerializer");
            settings.put("value.deserializer", of + "deserializers.GlueSchemaRegistryKafkaDeserializer");
        }
        if (task.equals("write")) {
            settings.put("key.serializer", StringSerializer.class.getName());
            Schema schema = new Schema.Parser().parse(SCHEMA);
            try (KafkaProducer<String, GenericRecord> producer = new KafkaProducer<>(settings)) {
                for (String name : NAMES) {
                    GenericRecord value = new GenericData.Record(schema);
                    value.put("id", (long) NAMES.indexOf(name) + 1);
                    value.put("email", name.toLowerCase() + "@example.com");
                    value.put("name", name);
                    producer.send(new ProducerRecord<>(topic, name, value)).get();
                }
            }
            return;
        }
        settings.put("key.deserializer", StringDeserializer.class.getName());
        try (KafkaConsumer<String, GenericRecord> consumer = new KafkaConsumer<>(settings)) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                consumer.poll(Duration.ofSeconds(1)).forEach(one -> System.out.println(one.value()));
            }
        }
    }
}
