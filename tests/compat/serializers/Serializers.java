import com.amazonaws.services.schemaregistry.serializers.json.JsonDataWithSchema;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Message;
import com.google.protobuf.TextFormat;
import com.google.protobuf.util.JsonFormat;
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

/** Writes three customers with a serializer of Apicurio or of AWS Glue, or reads a topic from the start with its deserializer. */
public class Serializers {
    static final String AVRO = """
        {"type": "record", "name": "Customer", "namespace": "shop", "fields": [
          {"name": "id", "type": "long"},
          {"name": "email", "type": "string"},
          {"name": "name", "type": ["null", "string"], "default": null}]}""";

    /** The type of the values is the second of the file, and the third of all by their names: a map has a type for its entries. */
    static final String PROTOBUF = """
        name: "shop.proto" package: "shop" syntax: "proto3"
        message_type { name: "Basket"
          field { name: "notes" number: 1 type: TYPE_MESSAGE type_name: ".shop.Basket.NotesEntry" label: LABEL_REPEATED }
          nested_type { name: "NotesEntry" options { map_entry: true }
            field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
            field { name: "value" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } } }
        message_type { name: "Customer"
          field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
          field { name: "email" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
          field { name: "name" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL }
          field { name: "basket" number: 4 type: TYPE_MESSAGE type_name: ".shop.Basket" label: LABEL_OPTIONAL }
          field { name: "phone" number: 5 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
          field { name: "fax" number: 6 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
          oneof_decl { name: "contact" } }""";

    /** `%1$s` is the name of a customer, `%2$d` the number. */
    static final String JSON = """
        {"id": %2$d, "email": "%3$s@example.com", "name": "%1$s",
         "friends": [{"name": "a friend of %1$s", "since": 1}, {"name": "note of %1$s", "since": 2}]}""";

    static final String PROTOBUF_JSON = """
        {"id": %2$d, "email": "%3$s@example.com", "name": "%1$s", "phone": "phone of %1$s",
         "basket": {"notes": {"gift": "note of %1$s", "hint": "as agreed"}}}""";

    static final List<String> NAMES = List.of("Ada", "Bob", "Cleo");

    public static void main(String[] words) throws Exception {
        String task = words[0], kind = words[1], topic = words[4];
        String format = kind.contains("-json") ? "JSON" : kind.contains("-protobuf") ? "PROTOBUF" : "AVRO";
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[2]);
        if (kind.startsWith("apicurio")) {
            String names = "io.apicurio.registry.serde." + (format.equals("JSON") ? "jsonschema.JsonSchema"
                : format.equals("PROTOBUF") ? "protobuf.Protobuf" : "avro.Avro");
            settings.put("apicurio.registry.headers.enabled", String.valueOf(kind.endsWith("-headers")));
            settings.put("apicurio.registry.url", words[3] + "/apis/registry/v2");
            settings.put("apicurio.registry.auto-register", "true");
            if (format.equals("JSON")) {
                settings.put("apicurio.registry.artifact.schema.location", "customer.json");
                settings.put("apicurio.registry.deserializer.value.return-class", JsonNode.class.getName());
            } else if (format.equals("PROTOBUF")) {
                settings.put("apicurio.registry.deserializer.value.return-class", DynamicMessage.class.getName());
            }
            settings.put("value.serializer", names + "KafkaSerializer");
            settings.put("value.deserializer", names + "KafkaDeserializer");
        } else {
            String of = "com.amazonaws.services.schemaregistry.";
            settings.put("endpoint", words[3]);
            settings.put("region", "eu-central-1");
            settings.put("dataFormat", format);
            settings.put("avroRecordType", "GENERIC_RECORD");
            settings.put("protobufMessageType", "DYNAMIC_MESSAGE");
            settings.put("compression", kind.endsWith("-zlib") ? "ZLIB" : "NONE");
            settings.put("value.serializer", of + "serializers.GlueSchemaRegistryKafkaSerializer");
            settings.put("value.deserializer", of + "deserializers.GlueSchemaRegistryKafkaDeserializer");
        }
        if (task.equals("write")) {
            settings.put("key.serializer", StringSerializer.class.getName());
            try (KafkaProducer<String, Object> producer = new KafkaProducer<>(settings)) {
                for (String name : NAMES) {
                    Object value = switch (format) {
                        case "JSON" -> json(said(JSON, name), kind.startsWith("glue"));
                        case "PROTOBUF" -> protobuf(said(PROTOBUF_JSON, name));
                        default -> avro(name);
                    };
                    producer.send(new ProducerRecord<>(topic, name, value)).get();
                }
            }
            return;
        }
        settings.put("key.deserializer", StringDeserializer.class.getName());
        try (KafkaConsumer<String, Object> consumer = new KafkaConsumer<>(settings)) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                for (var one : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(shown(one.value()));
                }
            }
        }
    }

    static String said(String template, String name) {
        return template.formatted(name, NAMES.indexOf(name) + 1, name.toLowerCase()).replace("\n", "");
    }

    static GenericRecord avro(String name) {
        GenericRecord value = new GenericData.Record(new Schema.Parser().parse(AVRO));
        value.put("id", (long) NAMES.indexOf(name) + 1);
        value.put("email", name.toLowerCase() + "@example.com");
        value.put("name", name);
        return value;
    }

    static Object json(String text, boolean isOfGlue) throws Exception {
        if (!isOfGlue) {
            return new ObjectMapper().readTree(text);
        }
        try (var schema = Serializers.class.getClassLoader().getResourceAsStream("customer.json")) {
            return JsonDataWithSchema.builder(new String(schema.readAllBytes()), text).build();
        }
    }

    static Message protobuf(String text) throws Exception {
        FileDescriptorProto file = TextFormat.parse(PROTOBUF, FileDescriptorProto.class);
        Descriptor type = FileDescriptor.buildFrom(file, new FileDescriptor[0]).findMessageTypeByName("Customer");
        DynamicMessage.Builder found = DynamicMessage.newBuilder(type);
        JsonFormat.parser().merge(text, found);
        return found.build();
    }

    static String shown(Object value) throws Exception {
        if (value instanceof Message message) {
            return JsonFormat.printer().preservingProtoFieldNames().omittingInsignificantWhitespace().print(message);
        }
        return value instanceof JsonDataWithSchema json ? json.getPayload().replace("\n", "") : value.toString();
    }
}
