package kafka.server.share;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import kafka.server.ReplicaManager;
import org.apache.kafka.clients.consumer.internals.ShareAcquireMode;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.message.FetchResponseData.AbortedTransaction;
import org.apache.kafka.common.message.ShareFetchResponseData.AcquiredRecords;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.group.GroupConfigManager;
import org.apache.kafka.coordinator.share.PersisterStateBatchCombiner;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;
import org.apache.kafka.server.share.acknowledge.ShareAcknowledgementBatch;
import org.apache.kafka.server.share.fetch.InFlightBatch;
import org.apache.kafka.server.share.fetch.InFlightState;
import org.apache.kafka.server.share.persister.*;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.storage.log.FetchPartitionData;
import org.apache.kafka.server.util.timer.Timer;
import org.apache.kafka.server.util.timer.TimerTask;
import org.apache.kafka.server.util.timer.TimerTaskEntry;

/**
 * Kafka's own share partition, without a broker around it: plays the schedules of share_traces.py, one a line, and prints the answers of
 * each. Time, log and state topic are stood in for; the state topic combines batches by the class of Kafka's share coordinator.
 */
public final class KafkaSharePartition {
    private static final Uuid TOPIC_ID = new Uuid(1, 1);
    private static final TopicIdPartition PARTITION = new TopicIdPartition(TOPIC_ID, 0, "t");
    private static final long PRODUCER_ID = 5;
    private static final int TRIES = 100;

    private final Clock clock = new Clock();
    private final State state = new State();
    private final TreeMap<Long, MemoryRecords> log = new TreeMap<>();
    private final List<AbortedTransaction> aborted = new ArrayList<>();
    private final List<Long> abortedEnds = new ArrayList<>();
    private final boolean isCommitted;
    private final int maxInFlight;
    private final int maxDeliveries;
    private final int lockMs;
    private long logStart = 0;
    private long logEnd = 0;
    private SharePartition partition;
    /**
     * The start has passed all that is in flight: 4.3.1 then moves it back, or fails with a NullPointerException when locks end. Or it has
     * passed records that the state topic did not know: 4.3.1 looks for them for ever. Or the window is full, but begins with aborted
     * records: 4.3.1 gives nothing until a later record is acknowledged.
     */
    private boolean isLost;

    private KafkaSharePartition(String[] words) throws Exception {
        isCommitted = words[1].equals("1");
        maxInFlight = Integer.parseInt(words[2]);
        maxDeliveries = Integer.parseInt(words[3]);
        lockMs = Integer.parseInt(words[4]);
        start();
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] steps = line.split("\\|");
            KafkaSharePartition stage = new KafkaSharePartition(steps[0].split(" "));
            List<String> answers = new ArrayList<>();
            for (int i = 1; i < steps.length; i++) {
                String answer = stage.step(steps[i].split(" "));
                if (stage.isLost) break;
                answers.add(answer + " " + stage.firstOpen());
            }
            if (!stage.isLost) answers.add(stage.dump());
            System.out.println(String.join("|", answers));
        }
    }

    private void start() throws Exception {
        GroupConfigManager configs = (GroupConfigManager) bare(GroupConfigManager.class);
        set(configs, GroupConfigManager.class, "configMap", new ConcurrentHashMap<>());
        ReplicaManager manager = (ReplicaManager) bare(ReplicaManager.class);
        set(manager, ReplicaManager.class, "delayedShareFetchPurgatory",
            new DelayedOperationPurgatory<DelayedShareFetch>("ShareFetch", clock, 1, 1, false, false));
        clock.tasks.clear();
        partition = new SharePartition("g", PARTITION, 0, maxInFlight, maxDeliveries, lockMs, clock, clock, state, manager, configs, null);
        partition.maybeInitialize().join();
    }

    private String step(String[] words) throws Exception {
        switch (words[0]) {
            case "produce":
                append(Integer.parseInt(words[1]), false);
                return "-";
            case "transaction":
                long first = logEnd;
                append(Integer.parseInt(words[1]), true);
                mark(words[2].equals("commit"), first);
                return "-";
            case "fetch":
                return fetch(words);
            case "acknowledge":
                List<ShareAcknowledgementBatch> batches = new ArrayList<>();
                for (String word : Arrays.copyOfRange(words, 2, words.length)) {
                    String[] parts = word.split(":");
                    List<Byte> types = new ArrayList<>();
                    for (String type : parts[2].split(",")) types.add(Byte.parseByte(type));
                    batches.add(new ShareAcknowledgementBatch(Long.parseLong(parts[0]), Long.parseLong(parts[1]), types));
                }
                return outcome(() -> partition.acknowledge(words[1], batches));
            case "close":
                return outcome(() -> partition.releaseAcquiredRecords(words[1]));
            case "wait":
                clock.advance(Long.parseLong(words[1]));
                return "-";
            case "delete":
                logStart = Math.max(logStart, Long.parseLong(words[1]));
                log.headMap(logStart).clear();
                return "-";
            case "restart":
                start();
                return "-";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static String outcome(Supplier<CompletableFuture<Void>> action) {
        try {
            action.get().join();
            return "0";
        } catch (CompletionException error) {
            return Short.toString(Errors.forException(error.getCause()).code());
        } catch (NullPointerException error) {
            // Nothing is in flight, and the batch lies across the start: 4.3.1 meant "not found in the cache".
            return Short.toString(Errors.INVALID_RECORD_STATE.code());
        }
    }

    private void append(int count, boolean isTransactional) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1024), RecordBatch.CURRENT_MAGIC_VALUE, Compression.NONE,
            TimestampType.CREATE_TIME, logEnd, 0, isTransactional ? PRODUCER_ID : -1, isTransactional ? (short) 0 : -1,
            isTransactional ? 0 : -1, isTransactional, 0);
        for (int i = 0; i < count; i++) builder.append(0, null, new byte[] {1});
        log.put(logEnd, builder.build());
        logEnd += count;
    }

    private void mark(boolean isCommit, long first) {
        log.put(logEnd, MemoryRecords.withEndTransactionMarker(logEnd, 0, 0, PRODUCER_ID, (short) 0,
            new EndTransactionMarker(isCommit ? ControlRecordType.COMMIT : ControlRecordType.ABORT, 0)));
        if (!isCommit) {
            aborted.add(new AbortedTransaction().setProducerId(PRODUCER_ID).setFirstOffset(first));
            abortedEnds.add(logEnd);
        }
        logEnd++;
    }

    /** A fetch, again as long as it finds only what it has to skip, as clients do. */
    private String fetch(String[] words) {
        ShareAcquireMode mode = words[4].equals("1") ? ShareAcquireMode.RECORD_LIMIT : ShareAcquireMode.BATCH_OPTIMIZED;
        for (int i = 0; i < TRIES; i++) {
            if (!partition.canAcquireRecords()) {
                isLost |= firstOpen() > partition.startOffset();
                return "";
            }
            long offset = partition.nextFetchOffset();
            if (offset < logStart) {
                partition.updateCacheAndOffsets(logStart);
                isLost |= partition.persisterReadResultGapWindow() != null
                    || !partition.cachedState().isEmpty() && partition.cachedState().lastEntry().getValue().lastOffset() < logStart;
                continue;
            }
            if (offset >= logEnd) return "";
            Long floor = log.floorKey(offset);
            ByteBuffer buffer = ByteBuffer.allocate(1 << 16);
            for (MemoryRecords records : log.tailMap(floor == null ? offset : floor, true).values()) buffer.put(records.buffer().duplicate());
            buffer.flip();
            List<AbortedTransaction> seen = new ArrayList<>();
            for (int n = 0; n < aborted.size(); n++) if (abortedEnds.get(n) >= offset) seen.add(aborted.get(n));
            List<AcquiredRecords> found = partition.acquire(words[1], mode, Integer.parseInt(words[3]), Integer.parseInt(words[2]), offset,
                new FetchPartitionData(Errors.NONE, logEnd, logStart, MemoryRecords.readableRecords(buffer), Optional.empty(),
                    OptionalLong.of(logEnd), Optional.of(seen), OptionalInt.empty(), false),
                isCommitted ? FetchIsolation.TXN_COMMITTED : FetchIsolation.HIGH_WATERMARK).acquiredRecords();
            if (!found.isEmpty()) {
                List<String> texts = new ArrayList<>();
                for (AcquiredRecords one : found) texts.add(one.firstOffset() + "-" + one.lastOffset() + "x" + one.deliveryCount());
                return String.join(",", texts);
            }
        }
        return "";
    }

    /** The start offset once the next write has moved it: aborted records do not. */
    private long firstOpen() {
        long offset = partition.startOffset();
        for (Map.Entry<Long, String> one : records().entrySet()) {
            if (one.getKey() != offset || !one.getValue().matches("[24]:.*")) break;
            offset++;
        }
        return offset;
    }

    private String dump() {
        List<String> texts = new ArrayList<>();
        long start = firstOpen();
        records().tailMap(start, true).forEach((offset, text) -> texts.add(offset + ":" + text));
        return String.join(" ", texts);
    }

    /** State, deliveries and member of each offset of the window. */
    private TreeMap<Long, String> records() {
        TreeMap<Long, String> found = new TreeMap<>();
        for (InFlightBatch batch : partition.cachedState().values()) {
            for (long offset = Math.max(batch.firstOffset(), partition.startOffset()); offset <= batch.lastOffset(); offset++) {
                InFlightState one = batch.offsetState() == null ? null : batch.offsetState().get(offset);
                found.put(offset, one == null ? batch.batchState().id() + ":" + batch.batchDeliveryCount() + ":" + batch.batchMemberId()
                    : one.state().id() + ":" + one.deliveryCount() + ":" + one.memberId());
            }
        }
        return found;
    }

    private static Object bare(Class<?> type) throws Exception {
        return unsafe().allocateInstance(type);
    }

    private static void set(Object object, Class<?> type, String name, Object value) throws Exception {
        for (Field field : type.getDeclaredFields()) {
            if (field.getName().equals(name)) {
                unsafe().putObject(object, unsafe().objectFieldOffset(field), value);
                return;
            }
        }
        throw new NoSuchFieldException(name);
    }

    private static sun.misc.Unsafe unsafe() throws Exception {
        Field field = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        return (sun.misc.Unsafe) field.get(null);
    }

    /** Time that moves on demand, and its timers. */
    private static final class Clock implements Time, Timer {
        final List<TimerTaskEntry> tasks = new ArrayList<>();
        private long now = 1_000;

        void advance(long ms) {
            now += ms;
            for (TimerTaskEntry entry : new ArrayList<>(tasks)) {
                if (entry.expirationMs <= now) {
                    tasks.remove(entry);
                    if (!entry.cancelled()) entry.timerTask.run();
                }
            }
        }

        @Override public void add(TimerTask task) { tasks.add(new TimerTaskEntry(task, now + task.delayMs)); }
        @Override public boolean advanceClock(long timeoutMs) { return false; }
        @Override public int size() { return tasks.size(); }
        @Override public void close() { }
        @Override public long milliseconds() { return now; }
        @Override public long nanoseconds() { return now * 1_000_000; }
        @Override public long hiResClockMs() { return now; }
        @Override public void sleep(long ms) { }
        @Override public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) { }
        @Override public <T> T waitForFuture(java.util.concurrent.Future<T> future, long deadlineNs) { throw new UnsupportedOperationException(); }
    }

    /** The state of the share partition, as the share coordinator keeps it. */
    private static final class State implements Persister {
        private long startOffset = 0;
        private List<PersisterStateBatch> batches = List.of();

        @Override
        public CompletableFuture<ReadShareGroupStateResult> readState(ReadShareGroupStateParameters request) {
            return CompletableFuture.completedFuture(new ReadShareGroupStateResult.Builder().setTopicsData(List.of(new TopicData<>(TOPIC_ID,
                List.of(PartitionFactory.newPartitionAllData(0, 1, startOffset, Errors.NONE.code(), null, batches))))).build());
        }

        @Override
        public CompletableFuture<WriteShareGroupStateResult> writeState(WriteShareGroupStateParameters request) {
            PartitionStateBatchData data = request.groupTopicPartitionData().topicsData().get(0).partitions().get(0);
            startOffset = data.startOffset();
            batches = joined(new PersisterStateBatchCombiner(batches, data.stateBatches(), startOffset).combineStateBatches());
            return CompletableFuture.completedFuture(new WriteShareGroupStateResult.Builder().setTopicsData(List.of(new TopicData<>(TOPIC_ID,
                List.of(PartitionFactory.newPartitionErrorData(0, Errors.NONE.code(), null))))).build());
        }

        /** How many writes there were, and with them what is joined, depends on timers that end at the same time. */
        private static List<PersisterStateBatch> joined(List<PersisterStateBatch> batches) {
            List<PersisterStateBatch> found = new ArrayList<>();
            for (PersisterStateBatch one : batches) {
                PersisterStateBatch last = found.isEmpty() ? null : found.get(found.size() - 1);
                if (last != null && last.lastOffset() + 1 == one.firstOffset() && last.deliveryState() == one.deliveryState()
                    && last.deliveryCount() == one.deliveryCount()) {
                    found.remove(last);
                    one = new PersisterStateBatch(last.firstOffset(), one.lastOffset(), one.deliveryState(), one.deliveryCount());
                }
                found.add(one);
            }
            return found;
        }

        @Override public CompletableFuture<InitializeShareGroupStateResult> initializeState(InitializeShareGroupStateParameters request) { return null; }
        @Override public CompletableFuture<DeleteShareGroupStateResult> deleteState(DeleteShareGroupStateParameters request) { return null; }
        @Override public CompletableFuture<ReadShareGroupStateSummaryResult> readSummary(ReadShareGroupStateSummaryParameters request) { return null; }
        @Override public void stop() { }
    }
}
