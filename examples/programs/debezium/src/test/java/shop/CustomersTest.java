package shop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.zonky.test.db.postgres.embedded.EmbeddedPostgres;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.connect.cli.ConnectDistributed;
import org.junit.jupiter.api.Test;

class CustomersTest {
    static final String TOPIC = "shop.public.customers";
    static final ObjectMapper JSON = new ObjectMapper();

    @Test
    void aDeletedCustomerIsErasedFromTheChangeEvents() throws Exception {
        try (var postgres = EmbeddedPostgres.builder()
                    .setServerConfig("wal_level", "logical").setPGStartupWait(Duration.ofSeconds(120)).start();
                var connection = postgres.getPostgresDatabase().getConnection();
                var database = connection.createStatement()) {
            database.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)");
            var connect = new ConnectDistributed().startConnect(worker());
            try {
                call("PUT", connect.rest().advertisedUrl().resolve("/connectors/customers/config"), connector(postgres.getPort()));
                database.execute("INSERT INTO customers VALUES (42, 'Ada'), (43, 'Grace')");
                waitUntilTheTopicHas("Grace");
                for (int number = 1; number <= 20; number++) {
                    database.execute("UPDATE customers SET name = 'Ada " + number + "' WHERE id = 42");
                    database.execute("UPDATE customers SET name = 'Grace " + number + "' WHERE id = 43");
                }
                database.execute("DELETE FROM customers WHERE id = 42");
                database.execute("INSERT INTO customers VALUES (44, 'Edsger')");
                waitUntilTheTopicHas("Edsger");
            } finally {
                connect.stop();
                connect.awaitStop();
            }
        }
        assertTrue(records().contains("Ada 20"));

        JsonNode erased = diamant("/v1/erase?wait_ms=60000", Map.of(
            "key", Map.of("text", "{\"id\":42}"),
            "topics", new String[] {TOPIC},
            "reason", "the customer asked for it",
            "now", true));
        assertEquals("key-gone", erased.path("state").asText(), erased.toString());
        assertTrue(erased.path("certificate").path("found").path(0).path("values").asInt() > 20);

        diamant("/v1/compact?wait_ms=60000", Map.of("topic", TOPIC));
        String left = records();
        assertFalse(left.contains("Ada") || left.contains("\\\"id\\\":42"), left);
        assertTrue(left.contains("Grace 20") && !left.contains("Grace 19"), left);
    }

    static Map<String, String> worker() {
        var config = new HashMap<String, String>();
        config.put("bootstrap.servers", System.getenv("KAFKA_BOOTSTRAP_SERVERS"));
        config.put("group.id", "connect");
        config.put("listeners", "http://127.0.0.1:0");
        config.put("plugin.discovery", "service_load");
        config.put("offset.flush.interval.ms", "1000");
        for (String topic : new String[] {"config", "offset", "status"}) {
            config.put(topic + ".storage.topic", "connect-" + topic);
            config.put(topic + ".storage.replication.factor", "1");
        }
        for (String converter : new String[] {"key.converter", "value.converter"}) {
            config.put(converter, "org.apache.kafka.connect.json.JsonConverter");
            config.put(converter + ".schemas.enable", "false");
        }
        return config;
    }

    static Map<String, String> connector(int port) {
        var config = new HashMap<String, String>();
        config.put("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        config.put("plugin.name", "pgoutput");
        config.put("topic.prefix", "shop");
        config.put("database.hostname", "127.0.0.1");
        config.put("database.port", String.valueOf(port));
        config.put("database.user", "postgres");
        config.put("database.password", "postgres");
        config.put("database.dbname", "postgres");
        config.put("topic.creation.default.partitions", "1");
        config.put("topic.creation.default.replication.factor", "1");
        config.put("topic.creation.default.cleanup.policy", "compact");
        return config;
    }

    static void waitUntilTheTopicHas(String text) throws Exception {
        long end = System.nanoTime() + Duration.ofSeconds(120).toNanos();
        while (!records().contains(text)) {
            assertTrue(System.nanoTime() < end, () -> "no " + text + " in " + TOPIC);
            Thread.sleep(200);
        }
    }

    /** The records of the topic, one JSON object a line; what Diamant answers if there is no such topic. */
    static String records() throws Exception {
        return call("POST", URI.create(System.getenv("DIAMANT_HTTP_URL") + "/v1/find"), Map.of("topic", TOPIC));
    }

    static JsonNode diamant(String path, Object body) throws Exception {
        return JSON.readTree(call("POST", URI.create(System.getenv("DIAMANT_HTTP_URL") + path), body));
    }

    static String call(String method, URI address, Object body) throws Exception {
        var request = HttpRequest.newBuilder(address)
            .header("Content-Type", "application/json")
            .method(method, HttpRequest.BodyPublishers.ofString(JSON.writeValueAsString(body)))
            .build();
        return HttpClient.newHttpClient().send(request, BodyHandlers.ofString()).body();
    }
}
