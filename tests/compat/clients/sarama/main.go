// Sarama against a broker: `go run . HOST:PORT [STEP ...]`; the steps are those of ../steps.py.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand"
	"os"
	"reflect"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const (
	partitions = 4
	records    = 40
	timeout    = 90 * time.Second
	look       = 10 * time.Millisecond
	version    = "1.61.1"
)

var bootstrap []string

func unique(name string) string { return fmt.Sprintf("compat-%s-%08x", name, rand.Uint32()) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(holds bool, what string, values ...any) {
	if !holds {
		panic(fmt.Sprintf(what, values...))
	}
}

func waitUntil(isReached func() bool, what string) {
	deadline := time.Now().Add(timeout)
	for !isReached() {
		check(time.Now().Before(deadline), "%s: not within %s", what, timeout)
		time.Sleep(look)
	}
}

func config() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Producer.Return.Successes = true
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.Offsets.AutoCommit.Enable = false
	made.Consumer.MaxWaitTime = 100 * time.Millisecond
	made.Consumer.Group.Session.Timeout = 60 * time.Second
	made.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	if ca := os.Getenv("COMPAT_CA"); ca != "" {
		pem, err := os.ReadFile(ca)
		must(err)
		trusted := x509.NewCertPool()
		check(trusted.AppendCertsFromPEM(pem), "no certificate in %s", ca)
		made.Net.TLS.Enable = true
		made.Net.TLS.Config = &tls.Config{RootCAs: trusted}
	}
	return made
}

func adminClient() sarama.ClusterAdmin {
	admin, err := sarama.NewClusterAdmin(bootstrap, config())
	must(err)
	return admin
}

func newTopic(name string) string {
	topic := unique(name)
	admin := adminClient()
	defer admin.Close()
	must(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false))
	return topic
}

func payloads() []string {
	values := make([]string, records)
	for number := range values {
		values[number] = fmt.Sprintf("value-%02d", number)
	}
	return values
}

func send(topic string, values []string, settings *sarama.Config) {
	producer, err := sarama.NewSyncProducer(bootstrap, settings)
	must(err)
	defer producer.Close()
	sent := make([]*sarama.ProducerMessage, len(values))
	for number, value := range values {
		sent[number] = &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder("key of " + value), Value: sarama.StringEncoder(value),
			Headers: []sarama.RecordHeader{{Key: []byte("header"), Value: []byte(value)}},
		}
	}
	must(producer.SendMessages(sent))
}

func readPartition(consumer sarama.Consumer, topic string, partition int32, count int) []string {
	reader, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	must(err)
	defer reader.Close()
	read := []string{}
	for len(read) < count {
		select {
		case message := <-reader.Messages():
			read = append(read, string(message.Value))
		case <-time.After(timeout):
			panic(fmt.Sprintf("read %d of %d records within %s", len(read), count, timeout))
		}
	}
	return read
}

// member is a consumer of a group; sarama calls the methods below as a ConsumerGroupHandler.
type member struct {
	group  sarama.ConsumerGroup
	lock   sync.Mutex
	has    map[int32]int64 // partition to the offset after what was read
	setups int
	ended  int // claims that ended
	read   map[string]bool
	// sarama drops what it was not given time to commit, so sessions commit what they read when asked to.
	isCommitting bool
	errors       []string
	cancel       context.CancelFunc
	done         chan struct{}
}

func join(topic, group string, settings *sarama.Config) *member {
	m := &member{has: map[int32]int64{}, read: map[string]bool{}, done: make(chan struct{})}
	var err error
	m.group, err = sarama.NewConsumerGroup(bootstrap, group, settings)
	must(err)
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(m.done)
		for ctx.Err() == nil {
			if err := m.group.Consume(ctx, []string{topic}, m); err != nil {
				m.lock.Lock()
				m.errors = append(m.errors, err.Error())
				m.lock.Unlock()
				if strings.Contains(err.Error(), "fenced") {
					return
				}
			}
		}
	}()
	return m
}

func (m *member) Setup(sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.setups++
	return nil
}

func (m *member) Cleanup(session sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.isCommitting {
		session.Commit()
	}
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	m.lock.Lock()
	m.has[claim.Partition()] = 0
	m.lock.Unlock()
	defer func() {
		m.lock.Lock()
		defer m.lock.Unlock()
		delete(m.has, claim.Partition())
		m.ended++
	}()
	for {
		select {
		case message, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			m.lock.Lock()
			m.read[string(message.Value)] = true
			m.has[message.Partition] = message.Offset + 1
			m.lock.Unlock()
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *member) partitions() map[int32]bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	copied := map[int32]bool{}
	for partition := range m.has {
		copied[partition] = true
	}
	return copied
}

func (m *member) progress() (sum int64) {
	m.lock.Lock()
	defer m.lock.Unlock()
	for _, offset := range m.has {
		sum += offset
	}
	return sum
}

func (m *member) values() []string {
	m.lock.Lock()
	defer m.lock.Unlock()
	values := []string{}
	for value := range m.read {
		values = append(values, value)
	}
	sort.Strings(values)
	return values
}

func (m *member) end() {
	m.cancel()
	<-m.done
	must(m.group.Close())
}

// endCommitted has the members commit what they have read, and leave one after the other. All are told to before the first leaves:
// that ends the sessions of the others, too.
func endCommitted(members ...*member) {
	for _, m := range members {
		m.lock.Lock()
		m.isCommitting = true
		m.lock.Unlock()
	}
	for _, m := range members {
		m.end()
	}
}

func waitForASplit(first, second *member) {
	waitUntil(func() bool {
		one, two := first.partitions(), second.partitions()
		both := map[int32]bool{}
		for partition := range one {
			both[partition] = true
		}
		for partition := range two {
			both[partition] = true
		}
		return len(one) == 2 && len(two) == 2 && len(both) == partitions
	}, "two members share four partitions")
}

func produce() {
	topic := newTopic("produce")
	for _, codec := range []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD,
	} {
		settings := config()
		settings.Producer.Compression = codec
		settings.Producer.Idempotent = true
		settings.Net.MaxOpenRequests = 1
		send(topic, payloads(), settings)
	}
	settings := config()
	settings.Producer.RequiredAcks = sarama.WaitForLocal
	send(topic, payloads(), settings)
}

func consume() {
	topic := newTopic("consume")
	settings := config()
	settings.Producer.Compression = sarama.CompressionZSTD
	send(topic, payloads(), settings)
	client, err := sarama.NewClient(bootstrap, config())
	must(err)
	consumer, err := sarama.NewConsumerFromClient(client)
	must(err)
	read := []string{}
	for partition := range int32(partitions) {
		end, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
		must(err)
		read = append(read, readPartition(consumer, topic, partition, int(end))...)
	}
	must(consumer.Close())
	must(client.Close())
	sort.Strings(read)
	check(reflect.DeepEqual(read, payloads()), "read %v", read)
}

func classic() {
	topic, group := newTopic("group"), unique("group")
	send(topic, payloads(), config())
	settings := config()
	settings.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	first := join(topic, group, settings)
	waitUntil(func() bool { return len(first.partitions()) == partitions }, "one member has all partitions")
	second := join(topic, group, settings)
	waitForASplit(first, second)
	waitUntil(func() bool { return first.progress()+second.progress() == records }, "both have read everything")
	both := map[string]bool{}
	for _, value := range append(first.values(), second.values()...) {
		both[value] = true
	}
	check(len(both) == records, "read %d different records", len(both))
	endCommitted(first, second)
	send(topic, []string{"late"}, config())
	third := join(topic, group, settings)
	waitUntil(func() bool { return len(third.values()) > 0 }, "a third member reads what came later")
	waitUntil(func() bool { return third.progress() > 0 }, "it has a position")
	endCommitted(third)
	admin := adminClient()
	defer admin.Close()
	offsets, err := admin.ListConsumerGroupOffsets(group, nil)
	must(err)
	sum := int64(0)
	for _, block := range offsets.Blocks[topic] {
		sum += max(0, block.Offset)
	}
	check(sum == records+1, "committed %d", sum)
}

func cooperative() {
	topic, group := newTopic("cooperative"), unique("cooperative")
	settings := config()
	settings.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyCooperativeSticky()}
	first := join(topic, group, settings)
	waitUntil(func() bool { return len(first.partitions()) == partitions }, "one member has all partitions")
	second := join(topic, group, settings)
	waitForASplit(first, second)
	check(first.ended == 2 && first.setups == 1, "the first member keeps two throughout, %d claims ended", first.ended)
	first.end()
	second.end()
}

func static() {
	topic, group := newTopic("static"), unique("static")
	named := func(name string) *sarama.Config {
		settings := config()
		settings.Consumer.Group.InstanceId = name
		return settings
	}
	other := join(topic, group, named("other"))
	gone := join(topic, group, named("back"))
	waitForASplit(other, gone)
	before, setups := gone.partitions(), other.setups
	gone.end() // a static member does not leave its group when it is closed
	back := join(topic, group, named("back"))
	// Claims start one by one, each in its own goroutine: one of them is not yet the assignment.
	waitUntil(func() bool { return len(back.partitions()) == len(before) }, "the static member is back")
	check(reflect.DeepEqual(back.partitions(), before), "with its partitions")
	check(other.setups == setups, "the other member sees no rebalance")
	back.end()
	other.end()
}

func transactions() {
	topic, group, id := newTopic("txn"), unique("txn"), unique("txn")
	settings := config()
	settings.Producer.Idempotent = true
	settings.Producer.Transaction.ID = id
	settings.Producer.Partitioner = sarama.NewManualPartitioner
	settings.Producer.Retry.Max = 3
	settings.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(bootstrap, settings)
	must(err)
	for number := range 3 {
		must(producer.BeginTxn())
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(fmt.Sprint(number))})
		must(err)
		if number == 1 {
			must(producer.AbortTxn())
			continue
		}
		offset := &sarama.PartitionOffsetMetadata{Partition: 1, Offset: int64(number + 10)}
		must(producer.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{topic: {offset}}, group))
		must(producer.CommitTxn())
	}
	for isolation, expected := range map[sarama.IsolationLevel][]string{
		sarama.ReadCommitted: {"0", "2"}, sarama.ReadUncommitted: {"0", "1", "2"},
	} {
		reading := config()
		reading.Consumer.IsolationLevel = isolation
		consumer, err := sarama.NewConsumer(bootstrap, reading)
		must(err)
		read := readPartition(consumer, topic, 0, len(expected))
		check(reflect.DeepEqual(read, expected), "isolation level %d reads %v", isolation, read)
		must(consumer.Close())
	}
	admin := adminClient()
	defer admin.Close()
	offsets, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {1}})
	must(err)
	check(offsets.GetBlock(topic, 1).Offset == 12, "committed %d", offsets.GetBlock(topic, 1).Offset)
	newer, err := sarama.NewSyncProducer(bootstrap, settings)
	must(err)
	must(newer.BeginTxn())
	_, _, err = newer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("of the newer")})
	must(err)
	must(producer.BeginTxn())
	_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("of a fenced producer")})
	check(err != nil, "the older producer was not fenced")
	must(newer.CommitTxn())
	must(newer.Close())
	producer.Close()
}

func admin() {
	topic, group := newTopic("admin"), unique("admin")
	admin := adminClient()
	defer admin.Close()
	must(admin.CreatePartitions(topic, 6, nil, false))
	value := "1048576"
	entries := map[string]sarama.IncrementalAlterConfigsEntry{
		"segment.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value},
	}
	must(admin.IncrementalAlterConfig(sarama.TopicResource, topic, entries, false))
	// Kafka answers when the controller has the change; its brokers see it a moment later.
	waitUntil(func() bool {
		described, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})
		must(err)
		for _, entry := range described {
			if entry.Name == "segment.bytes" && entry.Value == value {
				return true
			}
		}
		return false
	}, "a new config")
	waitUntil(func() bool {
		topics, err := admin.DescribeTopics([]string{topic})
		must(err)
		return len(topics[0].Partitions) == 6
	}, "two more partitions")
	brokers, _, err := admin.DescribeCluster()
	must(err)
	check(len(brokers) == 1, "%d nodes", len(brokers))
	send(topic, payloads(), config())
	must(admin.DeleteRecords(topic, map[int32]int64{0: 1}))
	_, err = admin.DescribeLogDirs([]int32{brokers[0].ID()})
	must(err)

	reader := join(topic, group, config())
	waitUntil(func() bool { return len(reader.values()) > 0 }, "a member reads")
	described, err := admin.DescribeConsumerGroups([]string{group})
	must(err)
	check(described[0].State == "Stable", "the group is %s", described[0].State)
	listed, err := admin.ListConsumerGroups()
	must(err)
	check(listed[group] != "", "the group is listed")
	endCommitted(reader)
	must(admin.DeleteConsumerGroup(group))
	must(admin.DeleteTopic(topic))
	waitUntil(func() bool {
		topics, err := admin.ListTopics()
		must(err)
		_, isThere := topics[topic]
		return !isThere
	}, "the topic is gone")
}

func main() {
	names := []string{"produce", "consume", "classic", "cooperative", "static", "consumer", "transactions", "admin"}
	steps := map[string]func(){
		"produce": produce, "consume": consume, "classic": classic, "cooperative": cooperative, "static": static,
		"transactions": transactions, "admin": admin,
	}
	unsupported := map[string]string{"consumer": "sarama has no KIP-848"}
	bootstrap = []string{os.Args[1]}
	if len(os.Args) > 2 {
		names = os.Args[2:]
	}
	fmt.Println("version", version)
	// They share nothing but the broker, and wait most of the time; a panic in one ends the program.
	done := make([]chan struct{}, len(names))
	for number, name := range names {
		done[number] = make(chan struct{})
		go func() {
			if step := steps[name]; step != nil {
				step()
			}
			close(done[number])
		}()
	}
	for number, name := range names {
		<-done[number]
		if reason, isMissing := unsupported[name]; isMissing {
			fmt.Printf("%s unsupported: %s\n", name, reason)
		} else {
			fmt.Println(name, "ok")
		}
	}
}
