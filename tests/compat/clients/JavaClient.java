// Kafka's own Java client against a broker: java -cp 'KAFKA_HOME/libs/*' JavaClient.java HOST:PORT [STEP ...]; the steps are those
// of steps.py.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class JavaClient {
    static final List<String> STEPS =
        List.of("produce", "consume", "classic", "cooperative", "static", "consumer", "transactions", "admin");
    static final int PARTITIONS = 4;
    static final int RECORDS = 40;
    static final Duration TIMEOUT = Duration.ofSeconds(90);
    static final int SESSION_TIMEOUT_MS = 60_000;
    static final Duration POLL = Duration.ofMillis(50);
    static String bootstrap;

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static void waitUntil(Callable<Boolean> isReached, Runnable act, String what) throws Exception {
        long deadline = System.nanoTime() + TIMEOUT.toNanos();
        while (!isReached.call()) {
            check(System.nanoTime() < deadline, what + ": not within " + TIMEOUT.toSeconds() + " s");
            act.run();
        }
    }

    static String unique(String name) {
        return "compat-" + name + "-" + UUID.randomUUID().toString().substring(0, 8);
    }

    /** How a client comes to the broker: by TLS if COMPAT_CA names the file of its CA. */
    static Map<String, Object> at(Map<String, Object> config) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        String ca = System.getenv("COMPAT_CA");
        if (ca != null) {
            all.putAll(Map.of("security.protocol", "SSL", "ssl.truststore.type", "PEM", "ssl.truststore.location", ca));
        }
        all.putAll(config);
        return all;
    }

    static Admin adminClient() {
        return Admin.create(at(Map.of()));
    }

    static String newTopic(String name) throws Exception {
        String topic = unique(name);
        try (Admin admin = adminClient()) {
            admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 1))).all().get();
        }
        return topic;
    }

    static KafkaProducer<String, String> producer(Map<String, Object> config) {
        return new KafkaProducer<>(at(config), new StringSerializer(), new StringSerializer());
    }

    static List<String> payloads() {
        return IntStream.range(0, RECORDS).mapToObj(n -> "value-" + n).sorted().collect(Collectors.toList());
    }

    static void send(String topic, List<String> values, Map<String, Object> config) throws Exception {
        Set<String> places = new HashSet<>();
        try (KafkaProducer<String, String> producer = producer(config)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (String value : values) {
                ProducerRecord<String, String> record = new ProducerRecord<>(topic, "key of " + value, value);
                record.headers().add("header", value.getBytes(StandardCharsets.UTF_8));
                sent.add(producer.send(record));
            }
            producer.flush();
            for (Future<RecordMetadata> future : sent) places.add(future.get().partition() + ":" + future.get().offset());
        }
        check(places.size() == values.size(), "each record has a place of its own");
    }

    /** A consumer of a group that remembers what was taken from it and what it read. */
    static class Member implements ConsumerRebalanceListener, AutoCloseable {
        final List<String> read = new ArrayList<>();
        final List<Integer> taken = new ArrayList<>();
        final KafkaConsumer<String, String> consumer;

        Member(String topic, String group, Map<String, Object> config) {
            Map<String, Object> all = at(Map.of("group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", false));
            if (!"consumer".equals(config.get("group.protocol"))) {
                all.putAll(Map.of("heartbeat.interval.ms", 200, "session.timeout.ms", SESSION_TIMEOUT_MS));
            }
            all.putAll(config);
            consumer = new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
            consumer.subscribe(List.of(topic), this);
        }

        @Override public void onPartitionsAssigned(Collection<TopicPartition> partitions) { }

        @Override public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            partitions.forEach(partition -> taken.add(partition.partition()));
        }

        Set<Integer> partitions() {
            return consumer.assignment().stream().map(TopicPartition::partition).collect(Collectors.toCollection(TreeSet::new));
        }

        long progress() {
            return consumer.assignment().stream().mapToLong(consumer::position).sum();
        }

        void poll() {
            for (ConsumerRecord<String, String> record : consumer.poll(POLL)) read.add(record.value());
        }

        @Override public void close() {
            consumer.close();
        }
    }

    static void waitForASplit(Member first, Member second) throws Exception {
        waitUntil(() -> {
            Set<Integer> both = new TreeSet<>(first.partitions());
            both.addAll(second.partitions());
            return both.size() == PARTITIONS && first.partitions().size() == 2 && second.partitions().size() == 2;
        }, () -> { first.poll(); second.poll(); }, "two members share four partitions");
    }

    static void produce() throws Exception {
        String topic = newTopic("produce");
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            send(topic, payloads(), Map.of("compression.type", codec));
        }
        send(topic, payloads(), Map.of("enable.idempotence", false, "acks", "1"));
    }

    static void consume() throws Exception {
        String topic = newTopic("consume");
        send(topic, payloads(), Map.of("compression.type", "zstd"));
        List<String> read = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                at(Map.of()), new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> all = IntStream.range(0, PARTITIONS).mapToObj(n -> new TopicPartition(topic, n)).toList();
            consumer.assign(all);
            consumer.seekToBeginning(all);
            waitUntil(() -> read.size() >= RECORDS, () -> consumer.poll(POLL).forEach(record -> {
                check(new String(record.headers().lastHeader("header").value()).equals(record.value()), "the header arrives");
                read.add(record.value());
            }), "everything is read");
        }
        check(read.stream().sorted().toList().equals(payloads()), "what was sent is read");
    }

    static void shareAndGoOn(Map<String, Object> config) throws Exception {
        String topic = newTopic("group"), group = unique("group");
        send(topic, payloads(), Map.of());
        try (Member first = new Member(topic, group, config)) {
            waitUntil(() -> first.partitions().size() == PARTITIONS, first::poll, "one member has all partitions");
            try (Member second = new Member(topic, group, config)) {
                waitForASplit(first, second);
                waitUntil(() -> first.progress() + second.progress() == RECORDS, () -> { first.poll(); second.poll(); },
                    "both have read everything");
                first.consumer.commitSync();
                second.consumer.commitSync();
                Set<String> read = new TreeSet<>(first.read);
                read.addAll(second.read);
                check(new ArrayList<>(read).equals(payloads()), "what was sent is read");
            }
        }
        send(topic, List.of("late"), Map.of());
        try (Member third = new Member(topic, group, config)) {
            waitUntil(() -> !third.read.isEmpty(), third::poll, "a third member reads what came later");
            check(third.read.equals(List.of("late")), "only what came later");
        }
    }

    static void classic() throws Exception {
        shareAndGoOn(Map.of("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor"));
    }

    static void consumer() throws Exception {
        shareAndGoOn(Map.of("group.protocol", "consumer"));
        shareAndGoOn(Map.of("group.protocol", "consumer", "group.remote.assignor", "range"));
    }

    static void cooperative() throws Exception {
        String topic = newTopic("cooperative"), group = unique("cooperative");
        Map<String, Object> config =
            Map.of("partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        try (Member first = new Member(topic, group, config)) {
            waitUntil(() -> first.partitions().size() == PARTITIONS, first::poll, "one member has all partitions");
            try (Member second = new Member(topic, group, config)) {
                waitForASplit(first, second);
                check(new TreeSet<>(first.taken).equals(second.partitions()), "the first member keeps two throughout");
            }
        }
    }

    static void staticMembers() throws Exception {
        String topic = newTopic("static"), group = unique("static");
        try (Member other = new Member(topic, group, Map.of("group.instance.id", "other"))) {
            Member gone = new Member(topic, group, Map.of("group.instance.id", "back"));
            waitForASplit(other, gone);
            Set<Integer> before = gone.partitions();
            int revocations = other.taken.size();
            gone.close(); // a static member does not leave its group when it is closed
            Member back = new Member(topic, group, Map.of("group.instance.id", "back"));
            waitUntil(() -> !back.partitions().isEmpty(), () -> { back.poll(); other.poll(); }, "the static member is back");
            check(back.partitions().equals(before), "with its partitions");
            check(other.taken.size() == revocations, "the other member sees no rebalance");
            try (Member usurper = new Member(topic, group, Map.of("group.instance.id", "back"))) {
                boolean[] isFenced = {false};
                waitUntil(() -> isFenced[0], () -> {
                    usurper.poll();
                    other.poll();
                    try {
                        back.poll();
                    } catch (FencedInstanceIdException fenced) {
                        isFenced[0] = true;
                    }
                }, "the first member of an instance id is fenced");
            }
            back.close();
        }
    }

    @SuppressWarnings("removal") // metadata of a group by its id alone: what an application without a consumer has
    static void transactions() throws Exception {
        String topic = newTopic("txn"), group = unique("txn"), id = unique("txn");
        try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", id));
                KafkaProducer<String, String> newer = producer(Map.of("transactional.id", id));
                Admin admin = adminClient()) {
            producer.initTransactions();
            for (int number = 0; number < 3; number++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, "" + number)).get();
                if (number == 1) {
                    producer.abortTransaction();
                    continue;
                }
                producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(topic, 1), new OffsetAndMetadata(number + 10)), new ConsumerGroupMetadata(group));
                producer.commitTransaction();
            }
            for (Map.Entry<String, List<String>> each : Map.of(
                    "read_committed", List.of("0", "2"), "read_uncommitted", List.of("0", "1", "2")).entrySet()) {
                try (KafkaConsumer<String, String> reader = new KafkaConsumer<>(
                        at(Map.of("group.id", group, "isolation.level", each.getKey(), "enable.auto.commit", false)),
                        new StringDeserializer(), new StringDeserializer())) {
                    List<String> read = new ArrayList<>();
                    reader.assign(List.of(new TopicPartition(topic, 0)));
                    reader.seekToBeginning(reader.assignment());
                    waitUntil(() -> read.size() >= each.getValue().size(),
                        () -> reader.poll(POLL).forEach(record -> read.add(record.value())), each.getKey());
                    check(read.equals(each.getValue()), each.getKey() + " reads " + read);
                    TopicPartition consumed = new TopicPartition(topic, 1);
                    check(reader.committed(Set.of(consumed)).get(consumed).offset() == 12, "the offsets were committed");
                }
            }
            check(admin.describeTransactions(List.of(id)).description(id).get().producerId() >= 0, "described");
            newer.initTransactions();
            try {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, "of a fenced producer"));
                producer.commitTransaction();
                throw new AssertionError("the older producer was not fenced");
            } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
                // as it should be
            }
            newer.beginTransaction();
            newer.send(new ProducerRecord<>(topic, 0, null, "of the newer"));
            newer.commitTransaction();
        }
    }

    static void admin() throws Exception {
        String topic = newTopic("admin"), group = unique("admin");
        TopicPartition zero = new TopicPartition(topic, 0);
        List<TopicPartition> all = IntStream.range(0, 6).mapToObj(n -> new TopicPartition(topic, n)).toList();
        try (Admin admin = adminClient()) {
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(6))).all().get();
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("segment.bytes", "1048576"), AlterConfigOp.OpType.SET)))).all().get();
            // Kafka answers when the controller has the change; its brokers see it a moment later.
            waitUntil(() -> admin.describeConfigs(List.of(resource)).all().get().get(resource).get("segment.bytes").value()
                .equals("1048576"), () -> { }, "a new config");
            waitUntil(() -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size() == 6,
                () -> { }, "two more partitions");
            check(admin.describeCluster().nodes().get().size() == 1, "one node");
            check(admin.describeMetadataQuorum().quorumInfo().get().voters().size() == 1, "one voter");
            check(!admin.describeFeatures().featureMetadata().get().finalizedFeatures().isEmpty(), "finalized features");
            send(topic, payloads(), Map.of());
            long sum = admin.listOffsets(all.stream().collect(Collectors.toMap(p -> p, p -> OffsetSpec.latest()))).all().get()
                .values().stream().mapToLong(place -> place.offset()).sum();
            check(sum == RECORDS, "the ends of the partitions add up");
            admin.deleteRecords(Map.of(zero, RecordsToDelete.beforeOffset(1))).all().get();
            check(admin.listOffsets(Map.of(zero, OffsetSpec.earliest())).all().get().get(zero).offset() == 1, "records are gone");
            check(admin.describeProducers(all).all().get().size() == 6, "producers are described");
            check(admin.listTransactions().all().get() != null, "transactions are listed");
            check(admin.describeLogDirs(List.of(admin.describeCluster().nodes().get().iterator().next().id()))
                .allDescriptions().get().size() == 1, "one node's log directories");

            try (Member member = new Member(topic, group, Map.of())) {
                waitUntil(() -> !member.read.isEmpty(), member::poll, "a member reads");
                member.consumer.commitSync();
                check(admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState() == GroupState.STABLE, "stable");
                check(admin.listGroups().all().get().stream().map(GroupListing::groupId).anyMatch(group::equals), "listed");
            }
            admin.alterConsumerGroupOffsets(group, Map.of(zero, new OffsetAndMetadata(1))).all().get();
            check(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(zero).offset() == 1, "set");
            admin.deleteConsumerGroupOffsets(group, Set.of(zero)).all().get();
            check(!admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().containsKey(zero), "deleted");
            admin.deleteConsumerGroups(List.of(group)).all().get();
            admin.deleteTopics(List.of(topic)).all().get();
            waitUntil(() -> !admin.listTopics().names().get().contains(topic), () -> { }, "the topic is gone");
        }
    }

    interface Step {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        Map<String, Step> steps = Map.of("produce", JavaClient::produce, "consume", JavaClient::consume, "classic", JavaClient::classic,
            "cooperative", JavaClient::cooperative, "static", JavaClient::staticMembers, "consumer", JavaClient::consumer,
            "transactions", JavaClient::transactions, "admin", JavaClient::admin);
        Properties about = new Properties();
        about.load(KafkaProducer.class.getResourceAsStream("/kafka/kafka-version.properties"));
        System.out.println("version " + about.getProperty("version"));
        List<String> wanted = Arrays.asList(arguments).subList(1, arguments.length);
        for (String name : wanted.isEmpty() ? STEPS : wanted) {
            steps.get(name).run();
            System.out.println(name + " ok");
        }
    }
}
