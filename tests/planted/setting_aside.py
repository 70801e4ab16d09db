"""Mistakes in one topic that can not be backed up, and what the instances cost."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="a topic that the store refuses ends the pipeline",
        file="sink/tandem/sink/write/commit.py",
        old="            if isinstance(outcome, PermanentError) and not self._takes_others():\n",
        new="            if isinstance(outcome, PermanentError):\n",
    ),
    Mistake(
        name="a store that takes nothing is each topic's own fault",
        file="sink/tandem/sink/write/commit.py",
        old="            return False\n        return True\n\n    def _upload(",
        new="            return True\n        return True\n\n    def _upload(",
    ),
    Mistake(
        name="an object that fails for ever is tried for ever",
        file="sink/tandem/sink/write/commit.py",
        old="        return _PATIENCE_S if self._suspects.isdisjoint(topic_ids) else 0.0\n",
        new="        return math.inf\n",
    ),
    Mistake(
        name="what was refused of a topic is passed over",
        file="sink/tandem/sink/write/commit.py",
        old="        lost |= refused.keys()\n",
        new="",
    ),
    Mistake(
        name="the names of data objects grow with the topic's",
        file="avro/tandem/backup_avro/chain/layout.py",
        old="    if len(topic) <= longest:\n",
        new="    if len(topic) <= 249:\n",
    ),
    Mistake(
        name="settled checkpoints are read at every look",
        file="sink/tandem/sink/store/chain/checkpoints.py",
        old="        if info in before and infos.get(",
        new="        if remembered is None and info in before and infos.get(",
    ),
    Mistake(
        name="an id that is used again is taken for the checkpoint that had it",
        file="sink/tandem/sink/store/chain/checkpoints.py",
        old="if info in before and infos.get(before[info][0].key) == before[info][0]:",
        new="if info in before:",
    ),
    Mistake(
        name="what checkpoints were there for is never forgotten",
        file="sink/tandem/sink/write/merge.py",
        old="        if len(self._seqs) < len(before):\n",
        new="        if len(self._seqs) > len(before):\n",
    ),
    Mistake(
        name="each broker is asked for a whole answer",
        file="sink/tandem/sink/kafka/fetch/answer_shares.py",
        old="bytes_to_ask(broker, list(brokers.values()), most=most,",
        new="bytes_to_ask(broker, [broker], most=most,",
    ),
    Mistake(
        name="each fetcher has a sum of answers of its own",
        file="sink/tandem/sink/kafka/fetch/answer_shares.py",
        old="most=most, others=others)",
        new="most=most, others=())",
    ),
    Mistake(
        name="each pipeline has a memory budget of its own",
        file="controller/tandem/controller/instance/pipelines.py",
        old="self._parts, budget=self._budget)",
        new="self._parts)",
    ),
    Mistake(
        name="a build may take all of the memory budget",
        file="sink/tandem/sink/process/memory_budget.py",
        old="sum(max(charged, guaranteed) for charged in others)",
        new="sum(others)",
    ),
    Mistake(
        name="what a build reads beyond its share is taken from the tail's",
        file="sink/tandem/sink/process/memory_budget.py",
        old="        return min(self.held, self._granted)\n",
        new="        return self.held\n",
    ),
    Mistake(
        name="an object is copied on its way to the store",
        file="sink/tandem/sink/store/encrypted_objects.py",
        old="self._data.getvalue() if",
        new="bytearray(self._data.getvalue()) if",
    ),
    Mistake(
        name="what was asked for and not used yet does not count",
        file="sink/tandem/sink/kafka/fetch/answer_shares.py",
        old="if one.in_flight or one.buffered)",
        new="if one.buffered)",
    ),
    Mistake(
        name="the newest of each key takes twice the memory",
        file="spark_jobs/tandem/spark_jobs/restore/records/newest_records.py",
        old="    del columns  # the digests are not needed any more, and are two thirds of it\n",
        new="    columns = [half[order] for half in columns]\n",
    ),
    Mistake(
        name="what a setting is ends the backup of all topics",
        file="sink/tandem/sink/kafka/cluster/guarded_topics.py",
        old="number_setting(config, DELETE_RETENTION, unsaid=DEFAULT_DELETE_RETENTION_MS, unclear=0)",
        new="int(config.get(DELETE_RETENTION, DEFAULT_DELETE_RETENTION_MS))",
    ),
    Mistake(
        name="an answer that no frame takes is asked for again and again",
        file="sink/tandem/sink/kafka/fetch/fetcher.py",
        old="        if isinstance(error, kafka_errors.InvalidReceiveError):\n",
        new="        if isinstance(error, kafka_errors.InvalidReceiveError) and broker.failures > 99:\n",
    ),
    Mistake(
        name="whatever lies in a request that no frame takes is set aside",
        file="sink/tandem/sink/kafka/fetch/oversize_answers.py",
        old="    if len(asked) > 1:\n",
        new="    if not asked:\n",
    ),
    Mistake(
        name="what waits for one object for ever is not told",
        file="controller/tandem/controller/instance/task_board.py",
        old="if action in _SHORT and not running.future.done() and now",
        new="if action not in _SHORT and not running.future.done() and now",
    ),
)
