package shop

import (
	"context"
	"os"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestAPriceIsSentAndRead(t *testing.T) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Getenv("KAFKA_BOOTSTRAP_SERVERS")),
		kgo.AllowAutoTopicCreation(),
		kgo.ConsumeTopics("prices"),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	record := &kgo.Record{Topic: "prices", Key: []byte("apple"), Value: []byte("0.40")}
	if err := client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	found := client.PollFetches(context.Background()).Records()
	if len(found) != 1 || string(found[0].Value) != "0.40" {
		t.Fatalf("found %v", found)
	}
}
