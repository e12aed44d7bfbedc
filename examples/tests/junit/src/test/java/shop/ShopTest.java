package shop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;

class ShopTest {
    static final String SERVERS = System.getenv("KAFKA_BOOTSTRAP_SERVERS");

    @Test
    void aPriceIsSentAndRead() throws Exception {
        Map<String, Object> sending = Map.of("bootstrap.servers", SERVERS);
        try (var producer = new KafkaProducer<>(sending, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("prices", "apple", "0.40")).get();
        }
        Map<String, Object> reading =
                Map.of("bootstrap.servers", SERVERS, "group.id", "shop", "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("prices"));
            ConsumerRecords<String, String> found = ConsumerRecords.empty();
            while (found.isEmpty()) {
                found = consumer.poll(Duration.ofMillis(100));
            }
            assertEquals("0.40", found.iterator().next().value());
        }
    }
}
