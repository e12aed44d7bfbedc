import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * A Streams application that counts records by key, in a store with a changelog. Arguments: address, group.protocol, directory for its state.
 * Prints "counted KEY COUNT" for each record, or "failed CLASS: MESSAGE".
 */
public final class JavaStreams {
    private static final List<String> KEYS = List.of("a", "b", "a");
    private static final long WAIT_S = 120;

    public static void main(String[] args) throws Exception {
        Map<String, Object> address = Map.of("bootstrap.servers", args[0]);
        try (Admin admin = Admin.create(address)) {
            admin.createTopics(List.of(new NewTopic("in", 1, (short) 1), new NewTopic("out", 1, (short) 1))).all().get();
        }
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(address, new StringSerializer(), new StringSerializer())) {
            for (String key : KEYS) producer.send(new ProducerRecord<>("in", key, "v")).get();
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream("in").groupByKey().count(Materialized.as(Stores.inMemoryKeyValueStore("counts")))
            .toStream().to("out", org.apache.kafka.streams.kstream.Produced.valueSerde(Serdes.Long()));
        Properties settings = new Properties();
        settings.putAll(Map.of("bootstrap.servers", args[0], "application.id", "counts", "group.protocol", args[1], "state.dir", args[2],
            "default.key.serde", Serdes.StringSerde.class, "default.value.serde", Serdes.StringSerde.class,
            "statestore.cache.max.bytes", 0, "consumer.auto.offset.reset", "earliest"));
        CountDownLatch failed = new CountDownLatch(1);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setUncaughtExceptionHandler(error -> {
                System.out.println("failed " + error);
                failed.countDown();
                return StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            if (args[1].equals("streams")) {
                failed.await(WAIT_S, TimeUnit.SECONDS);
            } else {
                printCounts(args[0]);
            }
        }
    }

    private static void printCounts(String address) {
        Map<String, Object> settings = Map.of("bootstrap.servers", address, "group.id", "reader", "auto.offset.reset", "earliest");
        try (KafkaConsumer<String, Long> consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new LongDeserializer())) {
            consumer.subscribe(List.of("out"));
            long ends = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
            for (int count = 0; count < KEYS.size() && System.nanoTime() < ends; ) {
                for (ConsumerRecord<String, Long> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println("counted " + record.key() + " " + record.value());
                    count++;
                }
            }
        }
    }
}
