// franz-go against a broker: `go run . HOST:PORT [STEP ...]`; the steps are those of ../steps.py.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"reflect"
	"sort"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 4
	records    = 40
	timeout    = 90 * time.Second
	// Of an administrator's work, with all that it waits for.
	workTimeout = 5 * timeout
	look        = 10 * time.Millisecond
	version     = "1.22.2"
)

var bootstrap string

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

// How a client comes to the broker: by TLS if COMPAT_CA names the file of its CA.
func at() []kgo.Opt {
	options := []kgo.Opt{kgo.SeedBrokers(bootstrap)}
	if ca := os.Getenv("COMPAT_CA"); ca != "" {
		pem, err := os.ReadFile(ca)
		must(err)
		trusted := x509.NewCertPool()
		check(trusted.AppendCertsFromPEM(pem), "no certificate in %s", ca)
		options = append(options, kgo.DialTLSConfig(&tls.Config{RootCAs: trusted}))
	}
	return options
}

func client(options ...kgo.Opt) *kgo.Client {
	defaults := append(at(), kgo.MetadataMinAge(100*time.Millisecond))
	made, err := kgo.NewClient(append(defaults, options...)...)
	must(err)
	return made
}

func withAdmin(work func(ctx context.Context, admin *kadm.Client)) {
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	admin := kadm.NewClient(client())
	defer admin.Close()
	work(ctx, admin)
}

func newTopic(name string) string {
	topic := unique(name)
	withAdmin(func(ctx context.Context, admin *kadm.Client) {
		_, err := admin.CreateTopic(ctx, partitions, 1, nil, topic)
		must(err)
	})
	return topic
}

func payloads() []string {
	values := make([]string, records)
	for number := range values {
		values[number] = fmt.Sprintf("value-%02d", number)
	}
	return values
}

func send(topic string, values []string, options ...kgo.Opt) {
	producer := client(options...)
	defer producer.Close()
	sent := make([]*kgo.Record, len(values))
	for number, value := range values {
		header := kgo.RecordHeader{Key: "header", Value: []byte(value)}
		sent[number] = &kgo.Record{Topic: topic, Key: []byte("key of " + value), Value: []byte(value), Headers: []kgo.RecordHeader{header}}
	}
	must(producer.ProduceSync(context.Background(), sent...).FirstErr())
}

// member is a consumer of a group, polled by a goroutine of its own.
type member struct {
	client *kgo.Client
	topic  string
	lock   sync.Mutex
	has    map[int32]bool
	taken  []int32
	read   map[string]bool
	fenced bool
	cancel context.CancelFunc
	done   chan struct{}
}

func join(topic, group string, options ...kgo.Opt) *member {
	m := &member{topic: topic, has: map[int32]bool{}, read: map[string]bool{}, done: make(chan struct{})}
	take := func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
		m.lock.Lock()
		defer m.lock.Unlock()
		for _, partition := range lost[topic] {
			delete(m.has, partition)
			m.taken = append(m.taken, partition)
		}
	}
	all := []kgo.Opt{
		kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(200 * time.Millisecond), kgo.SessionTimeout(60 * time.Second), kgo.FetchMaxWait(200 * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
			m.lock.Lock()
			defer m.lock.Unlock()
			for _, partition := range given[topic] {
				m.has[partition] = true
			}
		}),
		kgo.OnPartitionsRevoked(take), kgo.OnPartitionsLost(take),
	}
	m.client = client(append(all, options...)...)
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(m.done)
		for ctx.Err() == nil {
			fetches := m.client.PollFetches(ctx)
			m.lock.Lock()
			fetches.EachRecord(func(record *kgo.Record) { m.read[string(record.Value)] = true })
			fetches.EachError(func(_ string, _ int32, err error) {
				m.fenced = m.fenced || errors.Is(err, kerr.FencedInstanceID)
			})
			m.lock.Unlock()
		}
	}()
	return m
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

// progress counts the records before its positions.
func (m *member) progress() (sum int64) {
	has := m.partitions()
	for partition, place := range m.client.UncommittedOffsets()[m.topic] {
		if has[partition] {
			sum += place.Offset
		}
	}
	return sum
}

func (m *member) end() {
	m.cancel()
	<-m.done
	m.client.CloseAllowingRebalance()
}

func waitUntil(isReached func() bool, what string) {
	deadline := time.Now().Add(timeout)
	for !isReached() {
		check(time.Now().Before(deadline), "%s: not within %s", what, timeout)
		time.Sleep(look)
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
	for _, codec := range []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	} {
		send(topic, payloads(), kgo.ProducerBatchCompression(codec))
	}
	send(topic, payloads(), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))
}

func readAll(topic string, count int, options ...kgo.Opt) []string {
	all := []kgo.Opt{kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}
	reader := client(append(all, options...)...)
	defer reader.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	read := []string{}
	for len(read) < count {
		fetches := reader.PollFetches(ctx)
		must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) { read = append(read, string(record.Value)) })
	}
	sort.Strings(read)
	return read
}

func consume() {
	topic := newTopic("consume")
	send(topic, payloads(), kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	read := readAll(topic, records)
	check(reflect.DeepEqual(read, payloads()), "read %v", read)
}

func shareAndGoOn(options ...kgo.Opt) {
	topic, group := newTopic("group"), unique("group")
	send(topic, payloads())
	first := join(topic, group, options...)
	waitUntil(func() bool { return len(first.partitions()) == partitions }, "one member has all partitions")
	second := join(topic, group, options...)
	waitForASplit(first, second)
	waitUntil(func() bool { return first.progress()+second.progress() == records }, "both have read everything")
	for _, each := range []*member{first, second} {
		must(each.client.CommitUncommittedOffsets(context.Background()))
	}
	// A record counts as polled before the member has looked at it.
	waitUntil(func() bool {
		both := map[string]bool{}
		for _, value := range append(first.values(), second.values()...) {
			both[value] = true
		}
		return len(both) == records
	}, "all different records were read")
	first.end()
	second.end()
	send(topic, []string{"late"})
	third := join(topic, group, options...)
	waitUntil(func() bool { return len(third.values()) > 0 }, "a third member reads what came later")
	check(reflect.DeepEqual(third.values(), []string{"late"}), "only what came later, not %v", third.values())
	third.end()
}

func classic() { shareAndGoOn(kgo.Balancers(kgo.RangeBalancer())) }

func cooperative() {
	topic, group := newTopic("cooperative"), unique("cooperative")
	first := join(topic, group, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	waitUntil(func() bool { return len(first.partitions()) == partitions }, "one member has all partitions")
	second := join(topic, group, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	waitForASplit(first, second)
	check(len(first.taken) == 2, "the first member keeps two throughout, it lost %v", first.taken)
	first.end()
	second.end()
}

func static() {
	topic, group := newTopic("static"), unique("static")
	options := []kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}
	other := join(topic, group, append(options, kgo.InstanceID("other"))...)
	gone := join(topic, group, append(options, kgo.InstanceID("back"))...)
	waitForASplit(other, gone)
	before := gone.partitions()
	revocations := len(other.taken)
	gone.end() // a static member does not leave its group when it is closed
	back := join(topic, group, append(options, kgo.InstanceID("back"))...)
	waitUntil(func() bool { return len(back.partitions()) > 0 }, "the static member is back")
	check(reflect.DeepEqual(back.partitions(), before), "with its partitions")
	check(len(other.taken) == revocations, "the other member sees no rebalance")
	usurper := join(topic, group, append(options, kgo.InstanceID("back"))...)
	waitUntil(func() bool {
		back.lock.Lock()
		defer back.lock.Unlock()
		return back.fenced
	}, "the first member of an instance id is fenced")
	for _, each := range []*member{back, usurper, other} {
		each.end()
	}
}

func consumer() {
	shareAndGoOn(kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
}

func transactions() {
	topic, group, id := newTopic("txn"), unique("txn"), unique("txn")
	ctx := context.Background()
	producer := client(kgo.TransactionalID(id), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer producer.Close()
	for number := range 3 {
		must(producer.BeginTransaction())
		must(producer.ProduceSync(ctx, &kgo.Record{Value: fmt.Appendf(nil, "%d", number)}).FirstErr())
		must(producer.EndTransaction(ctx, kgo.TransactionEndTry(number != 1)))
	}
	committed := readAll(topic, 2, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	check(reflect.DeepEqual(committed, []string{"0", "2"}), "read_committed reads %v", committed)
	everything := readAll(topic, 3)
	check(reflect.DeepEqual(everything, []string{"0", "1", "2"}), "read_uncommitted reads %v", everything)

	// A session reads, writes and commits the offsets of its group in one transaction.
	send(topic, []string{"3"}, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	out := newTopic("txn-out")
	session, err := kgo.NewGroupTransactSession(append(
		at(), kgo.TransactionalID(unique("txn")), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(),
	)...)
	must(err)
	for copied := 0; copied < 3; {
		fetches := session.PollFetches(ctx)
		must(fetches.Err())
		must(session.Begin())
		fetches.EachRecord(func(record *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Topic: out, Value: record.Value}, nil)
		})
		isCommitted, err := session.End(ctx, kgo.TryCommit)
		must(err)
		if isCommitted {
			copied += fetches.NumRecords()
		}
	}
	session.Close()
	copies := readAll(out, 3, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	check(reflect.DeepEqual(copies, []string{"0", "2", "3"}), "the copies are %v", copies)
	withAdmin(func(ctx context.Context, admin *kadm.Client) {
		offsets, err := admin.FetchOffsets(ctx, group)
		must(err)
		at, _ := offsets.Lookup(topic, 0)
		ends, err := admin.ListCommittedOffsets(ctx, topic)
		must(err)
		end, _ := ends.Lookup(topic, 0)
		check(at.At == end.Offset, "the group is at %d of %d", at.At, end.Offset)
	})

	newer := client(kgo.TransactionalID(id), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer newer.Close()
	must(newer.BeginTransaction())
	must(newer.ProduceSync(ctx, &kgo.Record{Value: []byte("of the newer")}).FirstErr())
	must(producer.BeginTransaction())
	err = producer.ProduceSync(ctx, &kgo.Record{Value: []byte("of a fenced producer")}).FirstErr()
	check(errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch), "the older producer is fenced, not %v", err)
	must(newer.EndTransaction(ctx, kgo.TryCommit))
}

func admin() {
	topic, group := newTopic("admin"), unique("admin")
	withAdmin(func(ctx context.Context, admin *kadm.Client) {
		updated, err := admin.UpdatePartitions(ctx, 6, topic)
		must(err)
		must(updated.Error())
		value := "1048576"
		altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "segment.bytes", Value: &value}}, topic)
		must(err)
		must(altered[0].Err)
		// Kafka answers when the controller has the change; its brokers see it a moment later.
		waitUntil(func() bool {
			described, err := admin.DescribeTopicConfigs(ctx, topic)
			must(err)
			for _, config := range described[0].Configs {
				if config.Key == "segment.bytes" && config.MaybeValue() == value {
					return true
				}
			}
			return false
		}, "a new config")
		waitUntil(func() bool {
			topics, err := admin.ListTopics(ctx, topic)
			must(err)
			return len(topics[topic].Partitions) == 6
		}, "two more partitions")
		brokers, err := admin.ListBrokers(ctx)
		must(err)
		check(len(brokers) == 1, "one node, not %v", brokers)
		send(topic, payloads())
		ends, err := admin.ListEndOffsets(ctx, topic)
		must(err)
		sum := int64(0)
		ends.Each(func(place kadm.ListedOffset) { sum += place.Offset })
		check(sum == records, "the ends add up to %d", sum)
		var before kadm.Offsets
		before.AddOffset(topic, 0, 1, -1)
		deleted, err := admin.DeleteRecords(ctx, before)
		must(err)
		must(deleted.Error())
		_, err = admin.DescribeProducers(ctx, kadm.TopicsSet{topic: {0: {}}})
		must(err)
		_, err = admin.ListTransactions(ctx, nil, nil)
		must(err)
		_, err = admin.DescribeAllLogDirs(ctx, nil)
		must(err)

		reader := join(topic, group)
		waitUntil(func() bool { return len(reader.values()) > 0 }, "a member reads")
		must(reader.client.CommitUncommittedOffsets(ctx))
		described, err := admin.DescribeGroups(ctx, group)
		must(err)
		check(described[group].State == "Stable", "the group is %s", described[group].State)
		listed, err := admin.ListGroups(ctx)
		must(err)
		check(listed[group].Group == group, "the group is listed")
		reader.end()
		must(admin.CommitAllOffsets(ctx, group, before))
		offsets, err := admin.FetchOffsets(ctx, group)
		must(err)
		at, _ := offsets.Lookup(topic, 0)
		check(at.At == 1, "the offset is %d", at.At)
		_, err = admin.DeleteGroup(ctx, group)
		must(err)
		_, err = admin.DeleteTopic(ctx, topic)
		must(err)
		waitUntil(func() bool {
			topics, err := admin.ListTopics(ctx)
			must(err)
			return !topics.Has(topic)
		}, "the topic is gone")
	})
}

func main() {
	names := []string{"produce", "consume", "classic", "cooperative", "static", "consumer", "transactions", "admin"}
	steps := map[string]func(){
		"produce": produce, "consume": consume, "classic": classic, "cooperative": cooperative, "static": static,
		"consumer": consumer, "transactions": transactions, "admin": admin,
	}
	bootstrap = os.Args[1]
	if len(os.Args) > 2 {
		names = os.Args[2:]
	}
	fmt.Println("version", version)
	// They share nothing but the broker, and wait most of the time; a panic in one ends the program.
	done := make([]chan struct{}, len(names))
	for number, name := range names {
		done[number] = make(chan struct{})
		go func() {
			steps[name]()
			close(done[number])
		}()
	}
	for number, name := range names {
		<-done[number]
		fmt.Println(name, "ok")
	}
}
