package shop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.admin.NewTopic;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.TopicBuilder;
import org.springframework.kafka.support.KafkaHeaders;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.messaging.handler.annotation.Payload;

/** Keeps the latest price of each fruit; each start reads the whole topic, in a group of its own. */
@SpringBootApplication
public class Shop {
    final Map<String, String> prices = new ConcurrentHashMap<>();

    public static void main(String[] arguments) {
        SpringApplication.run(Shop.class, arguments);
    }

    @Bean
    NewTopic topic() {
        return TopicBuilder.name("prices").partitions(1).compact().build();
    }

    @KafkaListener(topics = "prices", groupId = "shop-#{T(java.util.UUID).randomUUID()}")
    void onPrice(@Header(KafkaHeaders.RECEIVED_KEY) String fruit, @Payload(required = false) String price) {
        if (price == null) {
            prices.remove(fruit);
        } else {
            prices.put(fruit, price);
        }
    }
}
