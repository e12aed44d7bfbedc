// Reads a topic from the start with kgo, and its values with the schemas that the registry has, by franz-go's package sr.
//
// franz_go_sr read avro|protobuf BOOTSTRAP REGISTRY TOPIC
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	_ "google.golang.org/protobuf/types/known/anypb"
	_ "google.golang.org/protobuf/types/known/timestamppb"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var schemas *sr.Client

// withReferences returns the texts of a schema and of those that it refers to, which come first.
func withReferences(ctx context.Context, schema sr.Schema) []string {
	var found []string
	for _, one := range schema.References {
		other, err := schemas.SchemaByVersion(ctx, one.Subject, one.Version)
		check(err)
		found = append(found, withReferences(ctx, other.Schema)...)
	}
	return append(found, schema.Schema)
}

func ofAvro(texts []string, payload []byte) []byte {
	var schema avro.Schema
	cache := &avro.SchemaCache{}
	for _, text := range texts {
		var err error
		schema, err = avro.ParseWithCache(text, "", cache)
		check(err)
	}
	var value map[string]any
	check(avro.Unmarshal(schema, payload, &value))
	line, err := json.Marshal(value)
	check(err)
	return line
}

func ofProtobuf(texts []string, payload []byte) []byte {
	files := &protoregistry.Files{}
	var last protoreflect.FileDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(one protoreflect.FileDescriptor) bool {
		check(files.RegisterFile(one))
		return true
	})
	for _, text := range texts {
		data, err := base64.StdEncoding.DecodeString(text)
		check(err)
		described := &descriptorpb.FileDescriptorProto{}
		check(proto.Unmarshal(data, described))
		last, err = protodesc.NewFile(described, files)
		check(err)
		check(files.RegisterFile(last))
	}
	var header sr.ConfluentHeader
	indexes, payload, err := header.DecodeIndex(payload, 9)
	check(err)
	message := last.Messages().Get(indexes[0])
	for _, index := range indexes[1:] {
		message = message.Messages().Get(index)
	}
	value := dynamicpb.NewMessage(message)
	check(proto.Unmarshal(payload, value))
	line, err := protojson.MarshalOptions{UseProtoNames: true, Resolver: dynamicpb.NewTypes(files)}.Marshal(value)
	check(err)
	return line
}

func main() {
	kind, bootstrap, registry, topic := os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	schemas, err = sr.NewClient(sr.URLs(registry))
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
			read := ofAvro
			if kind == "protobuf" {
				read = ofProtobuf
			}
			fmt.Println(string(read(withReferences(ctx, found), payload)))
			left--
		})
	}
}
