package shop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

var ctx = context.Background()

// brokers carries out an operation, and returns the new leader of the partition that it moved.
func brokers(t *testing.T, operation, body string) int {
	t.Helper()
	url := os.Getenv("DIAMANT_HTTP_URL") + "/v1/brokers/" + operation
	answer, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil || answer.StatusCode != 200 {
		t.Fatal(operation, err, answer)
	}
	defer answer.Body.Close()
	var report struct {
		Moved []struct {
			NewLeader int `json:"new_leader"`
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&report); err != nil {
		t.Fatal(err)
	}
	if len(report.Moved) == 0 {
		return 0
	}
	return report.Moved[0].NewLeader
}

func client(t *testing.T, options ...kgo.Opt) *kgo.Client {
	servers := strings.Split(os.Getenv("DIAMANT_BOOTSTRAP_SERVERS"), ",")
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(servers...), kgo.AllowAutoTopicCreation())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.Close)
	return made
}

func produce(t *testing.T, producer *kgo.Client, topic string, numbers ...int) {
	t.Helper()
	for _, number := range numbers {
		record := &kgo.Record{Topic: topic, Value: fmt.Append(nil, number)}
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// read returns the next records' values.
func read(consumer *kgo.Client, count int) (values []string) {
	for len(values) < count {
		for _, record := range consumer.PollRecords(ctx, count-len(values)).Records() {
			values = append(values, string(record.Value))
		}
	}
	return values
}

func numbers(first, end int) (found []int) {
	for number := first; number < end; number++ {
		found = append(found, number)
	}
	return found
}

func TestNothingIsLostWhileTheLeaderMoves(t *testing.T) {
	producer := client(t)
	produce(t, producer, "orders", numbers(0, 100)...)
	brokers(t, "shuffle", `{"topic": "orders"}`)
	produce(t, producer, "orders", numbers(100, 200)...)
	found := read(client(t, kgo.ConsumeTopics("orders")), 200)
	if fmt.Sprint(found) != fmt.Sprint(numbers(0, 200)) {
		t.Fatal(found)
	}
}

func TestAGroupReadsOnWhenABrokerGoesDown(t *testing.T) {
	produce(t, client(t), "payments", numbers(0, 10)...)
	consumer := client(t, kgo.ConsumerGroup("readers"), kgo.ConsumeTopics("payments"))
	found := read(consumer, 5)
	leader := brokers(t, "shuffle", `{"topic": "payments"}`)
	brokers(t, fmt.Sprint(leader, "/down"), "{}")
	defer brokers(t, fmt.Sprint(leader, "/up"), "{}")
	found = append(found, read(consumer, 5)...)
	if fmt.Sprint(found) != fmt.Sprint(numbers(0, 10)) {
		t.Fatal(found)
	}
}

func TestTooFewInSyncReplicasAreAnError(t *testing.T) {
	producer := client(t, kgo.RecordRetries(5), kgo.MetadataMinAge(100*time.Millisecond))
	produce(t, producer, "ledger", 1)
	leader := brokers(t, "shuffle", `{"topic": "ledger"}`)
	for broker := 1; broker <= 3; broker++ {
		if broker != leader {
			brokers(t, fmt.Sprint(broker, "/down"), "{}")
			defer brokers(t, fmt.Sprint(broker, "/up"), "{}")
		}
	}
	refused := producer.ProduceSync(ctx, &kgo.Record{Topic: "ledger", Value: []byte("2")}).FirstErr()
	if !errors.Is(refused, kerr.NotEnoughReplicas) {
		t.Fatal(refused)
	}
}
