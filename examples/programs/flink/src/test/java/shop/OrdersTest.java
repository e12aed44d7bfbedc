package shop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.IntStream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;

class OrdersTest {
    static final String BOOTSTRAP = System.getenv("KAFKA_BOOTSTRAP_SERVERS");
    static final int ORDERS = 1000;

    @Test
    void everyOrderIsCopiedOnceAlthoughTheJobFails() throws Exception {
        try (var producer = new KafkaProducer<>(
                Map.of("bootstrap.servers", BOOTSTRAP), new StringSerializer(), new StringSerializer())) {
            IntStream.range(0, ORDERS).forEach(number -> producer.send(new ProducerRecord<>("orders", "order-" + number)));
        }

        var options = Configuration.fromMap(Map.of(
            "execution.checkpointing.interval", "200 ms",
            "restart-strategy.type", "fixed-delay",
            "restart-strategy.fixed-delay.delay", "100 ms"));
        var environment = StreamExecutionEnvironment.createLocalEnvironment(1, options);
        var source = KafkaSource.<String>builder()
            .setBootstrapServers(BOOTSTRAP)
            .setTopics("orders")
            .setBounded(OffsetsInitializer.latest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        var sink = KafkaSink.<String>builder()
            .setBootstrapServers(BOOTSTRAP)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("copy")
            .setProperty("transaction.timeout.ms", "60000")
            .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                .setTopic("copies").setValueSerializationSchema(new SimpleStringSchema()).build())
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "orders").map(new FailsOnce()).sinkTo(sink);
        environment.execute();

        assertTrue(FailsOnce.HAS_FAILED.get());
        List<String> committed = read("read_committed");
        assertEquals(IntStream.range(0, ORDERS).mapToObj(number -> "order-" + number).toList(), committed);
        assertTrue(read("read_uncommitted").size() > ORDERS, "the failed attempt left aborted records");
    }

    /** Passes 20 orders after a checkpoint, and fails; then passes everything. */
    static class FailsOnce implements MapFunction<String, String>, CheckpointListener {
        static final AtomicBoolean HAS_FAILED = new AtomicBoolean();
        private int leftUntilFailure = Integer.MAX_VALUE;

        @Override
        public String map(String order) throws Exception {
            Thread.sleep(2);
            if (--leftUntilFailure == 0 && !HAS_FAILED.getAndSet(true)) {
                throw new IllegalStateException("fails once");
            }
            return order;
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            leftUntilFailure = Math.min(leftUntilFailure, 20);
        }
    }

    /** Every record of the topic up to its present end. */
    static List<String> read(String isolation) {
        Map<String, Object> options = Map.of("bootstrap.servers", BOOTSTRAP, "isolation.level", isolation);
        var records = new ArrayList<String>();
        try (var consumer = new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer())) {
            var partition = new TopicPartition("copies", 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                consumer.poll(Duration.ofSeconds(1)).forEach(record -> records.add(record.value()));
            }
        }
        return records;
    }
}
