// kafkajs against a broker: `NODE_PATH=... node kafkajs_client.js HOST:PORT [STEP ...]`; the steps are those of steps.py.
'use strict'
const assert = require('assert')
const crypto = require('crypto')
const fs = require('fs')
const { CompressionTypes, ConfigResourceTypes, Kafka, PartitionAssigners, logLevel } = require('kafkajs')
const { version } = require('kafkajs/package.json')

const STEPS = ['produce', 'consume', 'classic', 'cooperative', 'static', 'consumer', 'transactions', 'admin']
const PARTITIONS = 4
const RECORDS = 40
const TIMEOUT_MS = 90000
const SESSION_TIMEOUT_MS = 60000
const LOOK_MS = 10

class Unsupported extends Error {}

const unique = name => `compat-${name}-${crypto.randomBytes(5).toString('hex')}`
const payloads = () =>
  Array.from({ length: RECORDS }, (_, n) => ({ key: `key-${n}`, value: `value-${n}`.repeat(10), headers: { header: `key-${n}` } }))
const [bootstrap, ...wanted] = process.argv.slice(2)
const ssl = process.env.COMPAT_CA ? { ca: [fs.readFileSync(process.env.COMPAT_CA)] } : false
const kafka = new Kafka({ clientId: 'compat', brokers: [bootstrap], ssl, logLevel: logLevel.NOTHING, retry: { initialRetryTime: 50 } })

async function waitUntil(isReached, what) {
  const deadline = Date.now() + TIMEOUT_MS
  while (!(await isReached())) {
    if (Date.now() > deadline) throw new Error(`${what}: not within ${TIMEOUT_MS} ms`)
    await new Promise(resolve => setTimeout(resolve, LOOK_MS))
  }
}

async function withAdmin(work) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

async function newTopic(name) {
  const topic = unique(name)
  await withAdmin(admin => admin.createTopics({ topics: [{ topic, numPartitions: PARTITIONS }], waitForLeaders: true }))
  return topic
}

async function send(topic, messages, options = {}, batch = {}) {
  const producer = kafka.producer(options)
  await producer.connect()
  const places = await producer.send({ topic, messages, ...batch })
  await producer.disconnect()
  return places
}

// A consumer of a group that remembers what it was given and what it read.
class Member {
  constructor(topic, groupId, options = {}) {
    this.topic = topic
    this.read = []
    this.next = new Map()
    this.partitions = new Set()
    this.consumer = kafka.consumer({ groupId, sessionTimeout: SESSION_TIMEOUT_MS, heartbeatInterval: 200, maxWaitTimeInMs: 100, ...options })
    this.consumer.on(this.consumer.events.GROUP_JOIN, ({ payload }) => {
      this.partitions = new Set(payload.memberAssignment[topic] || [])
      this.next.clear()
    })
  }

  async start() {
    await this.consumer.connect()
    await this.consumer.subscribe({ topics: [this.topic], fromBeginning: true })
    await this.consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        this.read.push(`${message.key}=${message.value}`)
        this.next.set(partition, Number(message.offset) + 1)
      },
    })
    return this
  }

  // What a batch from before a rebalance still brought is left out: partition and next offset of those it has now.
  get positions() {
    return [...this.next].filter(([partition]) => this.partitions.has(partition))
  }

  get progress() {
    return this.positions.reduce((sum, [, offset]) => sum + offset, 0)
  }

  async commit() {
    await this.consumer.commitOffsets(
      this.positions.map(([partition, offset]) => ({ topic: this.topic, partition, offset: String(offset) }))
    )
  }

  async end() {
    await this.consumer.disconnect()
  }
}

const steps = {
  async produce() {
    const topic = await newTopic('produce')
    for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
      await send(topic, payloads(), {}, { compression, acks: 1 })
      const places = await send(topic, payloads(), { idempotent: true, maxInFlightRequests: 1 }, { compression })
      assert(places.every(place => place.errorCode === 0))
    }
  },

  async consume() {
    throw new Unsupported('kafkajs reads as a member of a group only')
  },

  async classic() {
    const topic = await newTopic('group')
    const group = unique('group')
    await send(topic, payloads())
    const options = { partitionAssigners: [PartitionAssigners.roundRobin] }
    const first = await new Member(topic, group, options).start()
    await waitUntil(() => first.partitions.size === PARTITIONS, 'one member has all partitions')
    const second = await new Member(topic, group, options).start()
    await waitUntil(
      () => first.partitions.size === 2 && second.partitions.size === 2 && new Set([...first.partitions, ...second.partitions]).size === PARTITIONS,
      'two members share four partitions'
    )
    await waitUntil(() => first.progress + second.progress === RECORDS, 'both have read everything')
    await first.commit()
    await second.commit()
    const sent = payloads().map(({ key, value }) => `${key}=${value}`)
    assert.deepStrictEqual([...new Set([...first.read, ...second.read])].sort(), sent.sort())
    await Promise.all([first.end(), second.end()])
    await send(topic, [{ key: 'late', value: 'late' }])
    const third = await new Member(topic, group, options).start()
    await waitUntil(() => third.read.length > 0, 'a third member reads what came later')
    assert.deepStrictEqual(third.read, ['late=late'])
    await third.end()
  },

  async cooperative() {
    throw new Unsupported('kafkajs speaks the eager protocol only')
  },

  async static() {
    throw new Unsupported('kafkajs has no static members')
  },

  async consumer() {
    throw new Unsupported('kafkajs has no KIP-848')
  },

  async transactions() {
    const [topic, group, transactionalId] = [await newTopic('txn'), unique('txn'), unique('txn')]
    const options = { transactionalId, maxInFlightRequests: 1, idempotent: true, retry: { retries: 5, initialRetryTime: 50 } }
    const producer = kafka.producer(options)
    await producer.connect()
    for (const [number, isCommit] of [true, false, true].entries()) {
      const transaction = await producer.transaction()
      await transaction.send({ topic, messages: [{ value: String(number), partition: 0 }] })
      if (isCommit) {
        const topics = [{ topic, partitions: [{ partition: 1, offset: String(number + 10) }] }]
        await transaction.sendOffsets({ consumerGroupId: group, topics })
        await transaction.commit()
      } else {
        await transaction.abort()
      }
    }
    const offsets = await withAdmin(admin => admin.fetchOffsets({ groupId: group, topics: [topic] }))
    assert.deepStrictEqual(offsets[0].partitions.filter(one => one.partition === 1).map(one => one.offset), ['12'])
    for (const [readUncommitted, expected] of [[false, ['0', '2']], [true, ['0', '1', '2']]]) {
      const member = await new Member(topic, unique('txn'), { readUncommitted }).start()
      await waitUntil(() => member.read.length >= expected.length, `reads with readUncommitted ${readUncommitted}`)
      await member.end()
      assert.deepStrictEqual(member.read, expected.map(value => `null=${value}`))
    }
    const newer = kafka.producer(options)
    await newer.connect()
    const ofNewer = await newer.transaction()
    await ofNewer.send({ topic, messages: [{ value: 'of the newer', partition: 0 }] })
    const ofOlder = await producer.transaction()
    await assert.rejects(ofOlder.send({ topic, messages: [{ value: 'of a fenced producer', partition: 0 }] }))
    await ofNewer.commit()
    await Promise.all([producer.disconnect(), newer.disconnect()])
  },

  async admin() {
    const topic = await newTopic('admin')
    const group = unique('admin')
    await withAdmin(async admin => {
      await admin.createPartitions({ topicPartitions: [{ topic, count: 6 }] })
      const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
      await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: [{ name: 'segment.bytes', value: '1048576' }] }] })
      // Kafka answers when the controller has the change; its brokers see it a moment later.
      await waitUntil(async () => {
        const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [resource] })
        return resources[0].configEntries.some(entry => entry.configName === 'segment.bytes' && entry.configValue === '1048576')
      }, 'a new config')
      await waitUntil(async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length === 6, 'two more partitions')
      assert.strictEqual((await admin.describeCluster()).brokers.length, 1)
      await send(topic, payloads())
      const offsets = await admin.fetchTopicOffsets(topic)
      assert.strictEqual(offsets.reduce((sum, { high }) => sum + Number(high), 0), RECORDS)
      await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '1' }] })
      assert.strictEqual((await admin.fetchTopicOffsets(topic)).find(one => one.partition === 0).low, '1')

      const member = await new Member(topic, group).start()
      await waitUntil(() => member.read.length > 0, 'a member reads')
      await member.commit()
      assert.strictEqual((await admin.describeGroups([group])).groups[0].state, 'Stable')
      assert((await admin.listGroups()).groups.some(one => one.groupId === group))
      await member.end()
      await admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: '1' }] })
      const [committed] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
      assert.strictEqual(committed.partitions.find(one => one.partition === 0).offset, '1')
      await admin.deleteGroups([group])
      await admin.deleteTopics({ topics: [topic] })
      await waitUntil(async () => !(await admin.listTopics()).includes(topic), 'the topic is gone')
    })
  },
}

async function main() {
  console.log(`version ${version}`)
  // They share nothing but the broker, and wait most of the time.
  const names = wanted.length ? wanted : STEPS
  const results = await Promise.allSettled(names.map(name => steps[name]()))
  for (const [number, { status, reason }] of results.entries()) {
    if (status === 'rejected' && !(reason instanceof Unsupported)) throw reason
    console.log(`${names[number]} ${status === 'rejected' ? `unsupported: ${reason.message}` : 'ok'}`)
  }
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
