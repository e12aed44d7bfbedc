// Reads a topic from the start with kgo, and its values with the schemas that the registry has, by franz-go's package sr.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	bootstrap, registry, topic := os.Args[1], os.Args[2], os.Args[3]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	schemas, err := sr.NewClient(sr.URLs(registry))
	check(err)
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	check(err)
	defer client.Close()
	var header sr.ConfluentHeader
	for left := 3; left > 0; {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			id, payload, err := header.DecodeID(record.Value)
			check(err)
			found, err := schemas.SchemaByID(ctx, id)
			check(err)
			schema, err := avro.Parse(found.Schema)
			check(err)
			var value map[string]any
			check(avro.Unmarshal(schema, payload, &value))
			line, err := json.Marshal(value)
			check(err)
			fmt.Println(string(line))
			left--
		})
	}
}
