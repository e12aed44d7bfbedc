package shop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.NotEnoughReplicasException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;

class FailoverTest {
    static final String SERVERS = System.getenv("DIAMANT_BOOTSTRAP_SERVERS");

    /** Carries out an operation, and returns the new leader of the partition that it moved. */
    static int brokers(String operation, String json) throws Exception {
        var uri = URI.create(System.getenv("DIAMANT_HTTP_URL") + "/v1/brokers/" + operation);
        var request = HttpRequest.newBuilder(uri)
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(json))
                .build();
        var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        assertEquals(200, answer.statusCode(), answer.body());
        var leader = Pattern.compile("\"new_leader\": *(-?\\d+)").matcher(answer.body());
        return leader.find() ? Integer.parseInt(leader.group(1)) : 0;
    }

    static KafkaProducer<String, String> producer(int retries) {
        Map<String, Object> settings = Map.of("bootstrap.servers", SERVERS, "retries", retries);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String group, String topic) {
        Map<String, Object> settings =
                Map.of("bootstrap.servers", SERVERS, "group.id", group, "auto.offset.reset", "earliest", "max.poll.records", 5);
        var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    static void send(KafkaProducer<String, String> producer, String topic, List<String> values) throws Exception {
        for (var value : values) {
            producer.send(new ProducerRecord<>(topic, value)).get();
        }
    }

    /** Adds the next values until there are so many. */
    static void read(KafkaConsumer<String, String> consumer, int count, List<String> values) {
        while (values.size() < count) {
            consumer.poll(Duration.ofMillis(100)).forEach(record -> values.add(record.value()));
        }
    }

    static List<String> numbers(int first, int end) {
        return IntStream.range(first, end).mapToObj(String::valueOf).toList();
    }

    @Test
    void nothingIsLostWhileTheLeaderMoves() throws Exception {
        try (var producer = producer(Integer.MAX_VALUE)) {
            send(producer, "orders", numbers(0, 100));
            brokers("shuffle", "{\"topic\": \"orders\"}");
            send(producer, "orders", numbers(100, 200));
        }
        var values = new ArrayList<String>();
        try (var consumer = consumer("all", "orders")) {
            read(consumer, 200, values);
        }
        assertEquals(numbers(0, 200), values);
    }

    @Test
    void aGroupReadsOnWhenABrokerGoesDown() throws Exception {
        var values = new ArrayList<String>();
        try (var producer = producer(Integer.MAX_VALUE); var consumer = consumer("readers", "payments")) {
            send(producer, "payments", numbers(0, 10));
            read(consumer, 5, values);
            int leader = brokers("shuffle", "{\"topic\": \"payments\"}");
            brokers(leader + "/down", "{}");
            try {
                read(consumer, 10, values);
            } finally {
                brokers(leader + "/up", "{}");
            }
        }
        assertEquals(numbers(0, 10), values);
    }

    @Test
    void tooFewInSyncReplicasAreAnError() throws Exception {
        try (var producer = producer(5)) {
            send(producer, "ledger", List.of("1"));
            int leader = brokers("shuffle", "{\"topic\": \"ledger\"}");
            for (int broker = 1; broker <= 3; broker++) {
                if (broker != leader) brokers(broker + "/down", "{}");
            }
            try {
                var refused = assertThrows(ExecutionException.class, () -> send(producer, "ledger", List.of("2")));
                assertInstanceOf(NotEnoughReplicasException.class, refused.getCause());
            } finally {
                for (int broker = 1; broker <= 3; broker++) {
                    if (broker != leader) brokers(broker + "/up", "{}");
                }
            }
        }
    }
}
