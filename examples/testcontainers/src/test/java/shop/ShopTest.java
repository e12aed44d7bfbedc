package shop;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;
import org.testcontainers.junit.jupiter.Container;
import org.testcontainers.junit.jupiter.Testcontainers;
import org.testcontainers.utility.DockerImageName;

@Testcontainers(disabledWithoutDocker = true)
class ShopTest {
    @Container
    static final DiamantContainer broker = new DiamantContainer(DockerImageName.parse("diamant"));

    @Test
    void aPriceThatChangedIsCompacted() throws Exception {
        broker.diamant("topic", "create", "prices", "--config", "cleanup.policy=compact");
        Map<String, Object> sending = Map.of("bootstrap.servers", broker.getBootstrapServers());
        try (var producer = new KafkaProducer<>(sending, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("prices", "apple", "0.40")).get();
            producer.send(new ProducerRecord<>("prices", "apple", "0.50")).get();
        }
        assertTrue(broker.diamant("compact", "prices", "--json").contains("\"superseded\": 1"));
    }
}
