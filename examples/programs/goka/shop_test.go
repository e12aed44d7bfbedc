package shop

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
	"github.com/lovoo/goka/codec"
	"github.com/lovoo/goka/storage"
)

var (
	brokers = []string{os.Getenv("KAFKA_BOOTSTRAP_SERVERS")}
	group   = goka.DefineGroup("shop",
		goka.Input("sales", new(codec.Int64), addSale),
		goka.Persist(new(codec.Int64)))
)

// addSale keeps the total of each fruit in the table of the group.
func addSale(ctx goka.Context, sale any) {
	total, _ := ctx.Value().(int64)
	ctx.SetValue(total + sale.(int64))
}

func TestATableIsRestoredAfterCompaction(t *testing.T) {
	config := goka.DefaultConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	goka.ReplaceGlobalConfig(config)
	topics, err := topicManager()(brokers)
	check(t, err)
	check(t, topics.EnsureStreamExists("sales", 1))

	processor, stop := start(t)
	emitter, err := goka.NewEmitter(brokers, "sales", new(codec.Int64))
	check(t, err)
	for range 100 {
		_, err = emitter.Emit("apple", int64(1))
		check(t, err)
		_, err = emitter.Emit("pear", int64(2))
		check(t, err)
	}
	check(t, emitter.Finish())
	waitFor(t, processor, "apple", 100)
	waitFor(t, processor, "pear", 200)
	stop()

	answer, err := http.Post(os.Getenv("DIAMANT_HTTP_URL")+"/v1/compact?wait_ms=60000", "application/json",
		strings.NewReader(`{"topic": "`+string(goka.GroupTable(group.Group()))+`"}`))
	check(t, err)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}

	restarted, stop := start(t)
	waitFor(t, restarted, "apple", 100)
	waitFor(t, restarted, "pear", 200)
	stop()
}

// start runs a processor whose table is in memory: it begins empty, and is restored from the topic of the table.
func start(t *testing.T) (*goka.Processor, func()) {
	processor, err := goka.NewProcessor(brokers, group,
		goka.WithStorageBuilder(storage.MemoryBuilder()),
		goka.WithTopicManagerBuilder(topicManager()))
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- processor.Run(ctx) }()
	check(t, processor.WaitForReadyContext(ctx))
	return processor, func() {
		cancel()
		check(t, <-done)
	}
}

// topicManager creates topics with one replica; goka's default of two needs two brokers.
func topicManager() goka.TopicManagerBuilder {
	config := goka.NewTopicManagerConfig()
	config.Stream.Replication = 1
	config.Table.Replication = 1
	return goka.TopicManagerBuilderWithTopicManagerConfig(config)
}

func waitFor(t *testing.T, processor *goka.Processor, fruit string, expected int64) {
	var found any
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if found, _ = processor.Get(fruit); found == expected {
			return
		}
	}
	t.Fatalf("%s: %v, expected %d", fruit, found, expected)
}

func check(t *testing.T, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
