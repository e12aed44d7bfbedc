package shop;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.awaitility.Awaitility.await;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.kafka.core.KafkaTemplate;

@SpringBootTest
class ShopTest {
    @Autowired Shop shop;
    @Autowired KafkaTemplate<String, String> kafka;

    @Test
    void aShopStartedAfterCompactionHasTheSamePrices() throws Exception {
        kafka.executeInTransaction(transaction -> {
            for (int cents = 10; cents < 100; cents++) {
                transaction.send("prices", "apple", "0." + cents);
            }
            return transaction.send("prices", "pear", "1.00");
        });
        assertThatThrownBy(() -> kafka.executeInTransaction(transaction -> {
            transaction.send("prices", "apple", "a price that is never committed");
            throw new IllegalStateException("the transaction fails");
        })).isInstanceOf(IllegalStateException.class);
        kafka.executeInTransaction(transaction -> transaction.send("prices", "pear", null));
        kafka.executeInTransaction(transaction -> transaction.send("prices", "plum", "2.00"));
        Map<String, String> expected = Map.of("apple", "0.99", "plum", "2.00");
        await().atMost(Duration.ofSeconds(60)).untilAsserted(() -> assertThat(shop.prices).isEqualTo(expected));

        assertThat(compact("prices")).contains("\"removed\"");
        try (var context = SpringApplication.run(Shop.class)) {
            await().atMost(Duration.ofSeconds(60)).untilAsserted(() -> assertThat(context.getBean(Shop.class).prices).isEqualTo(expected));
        }
    }

    static String compact(String topic) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(System.getenv("DIAMANT_HTTP_URL") + "/v1/compact"))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString("{\"topic\": \"" + topic + "\"}"))
            .build();
        return HttpClient.newHttpClient().send(request, BodyHandlers.ofString()).body();
    }
}
