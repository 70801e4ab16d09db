"""Mistakes in reading logs: fetch, tail and scan."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="groups of one broker are taken for all",
        file="sink/tandem/sink/kafka/cluster/group_listing.py",
        old="asked = [broker.node_id for broker in manager.cluster.brokers()]\n",
        new="asked = [broker.node_id for broker in manager.cluster.brokers()][:1]\n",
    ),
    Mistake(
        name="groups of a broker that is down are taken for deleted",
        file="controller/tandem/controller/watch/guarded_cluster.py",
        old="        if listing.failed:\n",
        new="        if listing.failed and not listing.groups:\n",
    ),
    Mistake(
        name="streams groups are taken for groups without offsets",
        file="sink/tandem/sink/kafka/cluster/consumer_groups.py",
        old="frozenset({GroupType.CLASSIC, GroupType.CONSUMER, GroupType.STREAMS})",
        new="frozenset({GroupType.CLASSIC, GroupType.CONSUMER})",
    ),
    Mistake(
        name="one empty answer is believed",
        file="sink/tandem/sink/kafka/fetch/empty_answers.py",
        old="ask_at=now + _PAUSES[0])\n            return None",
        new="ask_at=now + _PAUSES[0])\n            return Evidence(answers=1, since=now, until=now)",
    ),
    Mistake(
        name="an end that grows while nothing comes is no reason to ask anew",
        file="sink/tandem/sink/kafka/fetch/empty_answers.py",
        old="if claim is None or claim.place != place:",
        new="if claim is None or claim.place._replace(end=place.end) != place:",
    ),
    Mistake(
        name="many are asked about at once whether they are empty",
        file="sink/tandem/sink/kafka/fetch/responses.py",
        old="alone = probed is not None and len(probed) == 1",
        new="alone = True",
    ),
    Mistake(
        name="what another copy holds is skipped",
        file="sink/tandem/sink/read/reader_context.py",
        old="        if record is not None:\n            self.report_trouble(",
        new="        if record is not None and end < 0:\n            self.report_trouble(",
    ),
    Mistake(
        name="a last record is held against ends that its copy has not read",
        file="avro/tandem/backup_avro/selection/last_records.py",
        old="and (self.position >= end or now < self.until)",
        new="and (self.position >= start or now < self.until)",
    ),
    Mistake(
        name="a record without a key is held against a compacted log",
        file="avro/tandem/backup_avro/selection/last_records.py",
        old="            elif key is not None:\n",
        new="            else:\n",
    ),
    Mistake(
        name="a copy that ends with a tombstone proves nothing",
        file="avro/tandem/backup_avro/selection/last_records.py",
        old="        self.spent = len(self._superseded) > _MOST_KEYS\n",
        new="        self.spent = True\n",
    ),
    Mistake(
        name="a value that a tombstone follows is held against a log",
        file="avro/tandem/backup_avro/selection/last_records.py",
        old="if key not in self._superseded)])",
        new=")])",
    ),
    Mistake(
        name="a look-up in a copy is named by the object that is read",
        file="sink/tandem/sink/read/skip/copied_records.py",
        old="question = (copy.generation, newest.key, newest.last, end)",
        new="question = (copy.generation, newest.key, hash(names[0]), end)",
    ),
    Mistake(
        name="partitions of one object share the answer of a look-up",
        file="sink/tandem/sink/read/skip/copied_records.py",
        old="question = (copy.generation, newest.key, newest.last, end)",
        new='question = (copy.generation, PartitionKey("", 0), newest.last, end)',
    ),
    Mistake(
        name="whatever a broker sends nothing of is skipped",
        file="sink/tandem/sink/read/reader_context.py",
        old="        start, end = seen.start, seen.end\n",
        new="        start, end = seen.start, seen.end\n        if to >= start:\n            return True\n",
    ),
    Mistake(
        name="a record that the leader names is skipped",
        file="sink/tandem/sink/read/reader_context.py",
        old="doubted_s < NAMED_PATIENCE_S:",
        new="doubted_s < 0:",
    ),
    Mistake(
        name="an index that is wrong stops a partition for ever",
        file="sink/tandem/sink/read/reader_context.py",
        old="if doubted_s is not None and doubted_s < NAMED_PATIENCE_S:",
        new="if doubted_s is not None:",
    ),
    Mistake(
        name="what was waited for is forgotten when a chunk is read again",
        file="sink/tandem/sink/read/reader_context.py",
        old="(upto is None or upto > doubt.start)",
        new="(upto is None or upto >= 0)",
    ),
    Mistake(
        name="an end below the position counts as at head",
        file="sink/tandem/sink/read/tail.py",
        old="if progress.offset == fetched.end_offset:",
        new="if progress.offset >= fetched.end_offset:",
    ),
    Mistake(
        name="the end that a dropped answer told is taken for known",
        file="sink/tandem/sink/kafka/fetch/responses.py",
        old="                part.end = part.high_watermark = -1\n",
        new="",
    ),
    Mistake(
        name="positions are looked through while the committer adds some",
        file="sink/tandem/sink/commit_draft.py",
        old="for key in list(self._state.positions) if key not in read",
        new="for key in self._state.positions if key not in read",
    ),
    Mistake(
        name="a job skips what the leader names",
        file="spark_jobs/tandem/spark_jobs/reading/skipped_ranges.py",
        old="        if named is not None and not event.fetch_offset <= named < event.end_offset:\n",
        new="        if named != event.end_offset + 1:\n",
    ),
    Mistake(
        name="a partition that waits for what copies hold is named nowhere",
        file="sink/tandem/sink/read/reader_context.py",
        old=">= LOOKUP_PATIENCE_S:",
        new="< 0:",
    ),
    Mistake(
        name="what was skipped at last stays among the troubles",
        file="sink/tandem/sink/read/reader_context.py",
        old="        self.clear_trouble(subject)\n        return True\n",
        new="        return True\n",
    ),
    Mistake(
        name="a created topic is used before the brokers know of it",
        file="sink/tandem/sink/kafka/cluster/admin.py",
        old="created[topic.topic] = topic.num_partitions",
        new="created[topic.topic] = 0",
    ),
    Mistake(
        name="one broker that does not know a topic is believed at once",
        file="sink/tandem/sink/kafka/cluster/admin.py",
        old="believed or time.monotonic() + UNKNOWN_S",
        new="believed or time.monotonic()",
    ),
    Mistake(
        name="a broker that hangs is waited for alone",
        file="sink/tandem/sink/kafka/wire/connections.py",
        old="node = self._not_asked(waiting) if time.monotonic() < until else None",
        new="node = None",
    ),
    Mistake(
        name="one leader that hangs takes the answers of the others",
        file="sink/tandem/sink/kafka/lookup/log_ends.py",
        old="            if not future.is_done:\n                problems",
        new="            if False:\n                problems",
    ),
    Mistake(
        name="a topic that a broker says nothing about is taken for deleted",
        file="sink/tandem/sink/kafka/cluster/hedged_admin.py",
        old="            topic = self._told(found, name)\n",
        new="            topic = found.get(name)\n            if topic is None:\n                continue\n",
    ),
    Mistake(
        name="a connection that fails stays open",
        file="sink/tandem/sink/kafka/wire/connections.py",
        old="                if not connected:\n",
        new="                if connected is None:\n",
    ),
    Mistake(
        name="an end that nobody tells hides the others",
        file="sink/tandem/sink/kafka/cluster/admin.py",
        old="if missing is not None and found and (",
        new="if missing is not None and not found and (",
    ),
)
