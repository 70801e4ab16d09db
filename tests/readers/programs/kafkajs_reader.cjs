// kafkajs: writes a compacted topic, reads it to the end, goes on as a group.
// The idioms are those of idioms.py; kafkajs has no position, its users keep the next offset of each message.
'use strict';

const { Kafka, logLevel } = require('kafkajs');

const job = JSON.parse(process.argv[2]);
const LIMIT_MS = 8000;
const GROUP = 'consumer group goes on';

const IDIOMS = {
  'last offset + 1 == high watermark': (seen) => seen.last !== null && seen.last + 1 === seen.high,
  'offset >= end - 1': (seen) => seen.last !== null && seen.last >= seen.high - 1,
  'position >= end': (seen) => seen.next >= seen.high,
  'count == high - low': (seen) => seen.count === seen.high - seen.low,
};

const kafka = new Kafka({ clientId: job.name, brokers: [job.bootstrap], logLevel: logLevel.WARN });

function tell(name, readyMs, state) {
  const ready = readyMs === null ? null : readyMs / 1000;
  process.stdout.write(`\nRESULT ${JSON.stringify({ case: name, ready_s: ready, state })}\n`);
}

async function write() {
  const began = Date.now();
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  const messages = [];
  for (let number = job.first; number < job.last; number += 1) {
    const rest = number % 40;
    messages.push({
      key: `key-${String(rest).padStart(2, '0')}`,
      value: rest % 7 === 6 ? null : String(number),
      partition: rest === 39 ? 3 : rest % 3,
      headers: { n: String(number) },
    });
  }
  await producer.send({ topic: job.name, messages });
  await producer.disconnect();
  tell('write', Date.now() - began, null);
}

async function watermarks() {
  const admin = kafka.admin();
  await admin.connect();
  const found = await admin.fetchTopicOffsets(job.name);
  await admin.disconnect();
  return Object.fromEntries(
    found.map(({ partition, low, high }) => [
      partition,
      { low: Number(low), high: Number(high), next: Number(low), last: null, count: 0 },
    ]),
  );
}

// Reads as a member of `group` until `ended`; returns the milliseconds that took, null if it never did.
async function read(group, seen, ended, take) {
  const began = Date.now();
  const consumer = kafka.consumer({ groupId: group, maxWaitTimeInMs: 200 });
  await consumer.connect();
  await consumer.subscribe({ topic: job.name, fromBeginning: true });
  await consumer.run({
    autoCommit: group === `${job.name}-group`,
    eachMessage: async ({ partition, message }) => {
      const item = seen[partition];
      item.last = Number(message.offset);
      item.next = item.last + 1;
      item.count += 1;
      take(message);
    },
  });
  while (!ended() && Date.now() - began < LIMIT_MS) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const took = ended() ? Date.now() - began : null;
  await consumer.disconnect();
  return took;
}

async function tryIdiom(name, reached) {
  const state = {};
  const seen = await watermarks();
  const ended = () => Object.values(seen).every((item) => item.low === item.high || reached(item));
  // A group that nobody else has, as there is no reading without one.
  const took = await read(`${job.name}-${job.last}-${Date.now()}`, seen, ended, (message) => {
    const key = message.key.toString();
    if (message.value === null) delete state[key];
    else state[key] = message.value.toString();
  });
  tell(name, took, state);
}

async function tryGroup() {
  const admin = kafka.admin();
  await admin.connect();
  const group = `${job.name}-group`;
  const [{ partitions }] = await admin.fetchOffsets({ groupId: group, topics: [job.name] });
  await admin.disconnect();
  const seen = await watermarks();
  for (const { partition, offset } of partitions) {
    if (Number(offset) >= 0) seen[partition].next = Number(offset);
  }
  const numbers = [];
  const ended = () => Object.values(seen).every((item) => item.next >= item.high);
  const took = await read(group, seen, ended, (message) => numbers.push(Number(message.headers.n.toString())));
  tell(GROUP, took, numbers.sort((one, other) => one - other));
}

async function main() {
  if (job.phase === 'write') {
    await write();
    return;
  }
  for (const [name, reached] of Object.entries(IDIOMS)) await tryIdiom(name, reached);
  await tryGroup();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
