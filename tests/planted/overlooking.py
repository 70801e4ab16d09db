"""Mistakes that close reading found in all parts: of silence, order, passes, versions of a bucket, and what is left."""

from __future__ import annotations

from planted.mistakes import Mistake

_LIVENESS = "controller/tandem/controller/decision/liveness.py"
_RETENTION = "spark_jobs/tandem/spark_jobs/retention/retention_plan.py"
_SWEEP = "spark_jobs/tandem/spark_jobs/retention/sweep_partition.py"
_VERSIONS = "sink/tandem/sink/store/s3/versions.py"
_PURGE = "spark_jobs/tandem/spark_jobs/erasure/former_copies.py"

MISTAKES = (
    Mistake(
        name="overlooking: time in which nothing could be heard counts as silence",
        file=_LIVENESS,
        old="    listening = heard if seen.deaf else seen.listening_mono\n",
        new="    listening = heard\n",
    ),
    Mistake(
        name="overlooking: a process that stood still takes what it heard before for news",
        file=_LIVENESS,
        old="    return seen.started_mono if at is None else max(at, seen.started_mono)\n",
        new="    return seen.started_mono if at is None else at\n",
    ),
    Mistake(
        name="overlooking: expiry takes what lies behind an object that stays",
        file=_RETENTION,
        old=" and part.first < stays.get(part.key, part.last + 1) and goes(item, part)\n",
        new=" and goes(item, part)\n",
    ),
    Mistake(
        name="overlooking: records without a timestamp keep all that follow them",
        file=_RETENTION,
        old="        if in_log and part.min_timestamp >= 0 and not goes(item, part):\n",
        new="        if in_log and not goes(item, part):\n",
    ),
    Mistake(
        name="overlooking: what a sweep had no room for is left for good",
        file=_SWEEP,
        old="        return bool(self.replaced) and (self.forgot or self.full)\n",
        new="        return False\n",
    ),
    Mistake(
        name="overlooking: objects from which nothing goes are rewritten",
        file=_SWEEP,
        old="        chosen = {key for key in chosen if self.going[key]}\n",
        new="",
    ),
    Mistake(
        name="overlooking: tombstones of a topic that grew in its generation go",
        file="spark_jobs/tandem/spark_jobs/retention/sweep_plan.py",
        old="                if key.topic_id in grown\n",
        new="                if False\n",
    ),
    Mistake(
        name="overlooking: a version from before versioning was on is the object",
        file=_VERSIONS,
        old="                if not is_present and (one.marker or not never_versioned):\n",
        new="                if not is_present and (one.marker or one.id != _NULL):\n",
    ),
    Mistake(
        name="overlooking: a delete marker goes before the versions that it hides",
        file=_VERSIONS,
        old="            for one, is_present in sorted(items, key=lambda item: item[0].marker):\n",
        new="            for one, is_present in sorted(items, key=lambda item: not item[0].marker):\n",
    ),
    Mistake(
        name="overlooking: the marker of a version that stays is deleted",
        file=_PURGE,
        old="        if one.marker and left and left[-1].key == one.key:\n",
        new="        if one is None:\n",
    ),
    Mistake(
        name="overlooking: a refused key keeps all others where keys are deleted one by one",
        file="sink/tandem/sink/store/s3/s3_store.py",
        old="        _for_all(left, self._delete_one)\n",
        new="        for name in left:\n            self._delete_one(name)\n",
    ),
    Mistake(
        name="overlooking: an answer that is no HTTP ends the process",
        file="sink/tandem/sink/store/cloud_client.py",
        old="                except (OSError, HTTPException, ValueError) as error:",
        new="                except OSError as error:",
    ),
    Mistake(
        name="overlooking: an empty name of a key switches encryption off",
        file="sink/tandem/sink/encryption/encryption_settings.py",
        old='        if "" in values:\n',
        new="        if values is None:\n",
    ),
    Mistake(
        name="overlooking: a secret in place of its path is shown",
        file="sink/tandem/sink/encryption/key_text.py",
        old='    return not path.startswith("/") or _ENCODED.fullmatch(path.strip()) is not None\n',
        new="    return False\n",
    ),
    Mistake(
        name="overlooking: of two connector copies that tie one is taken",
        file="spark_jobs/tandem/spark_jobs/connector/choose_files.py",
        old="        if file.records:\n            number",
        new="        if file is not None:\n            number",
    ),
    Mistake(
        name="overlooking: a failed transaction into a live topic stays open",
        file="spark_jobs/tandem/spark_jobs/restore/live_write/guarded_writer.py",
        old="                with suppress(TandemError):\n                    transaction.abandon()\n",
        new="",
    ),
    Mistake(
        name="overlooking: keys that vanished from a copy that is kept whole are in no metric",
        file="controller/tandem/controller/metrics/instance_metrics.py",
        old="    return replace(made, vanished_keys=made.vanished_keys + unrecorded)\n",
        new="    return made\n",
    ),
    Mistake(
        name="overlooking: adopting a topic revives the announcement of its neighbours",
        file="sink/tandem/sink/store/chain/restore_targets.py",
        old="key=lambda note: ANY not in note[1].topics.values()):\n",
        new="key=lambda note: ANY in note[1].topics.values()):\n",
    ),
    Mistake(
        name="overlooking: what a probe says of the store is thrown away",
        file="controller/tandem/controller/instance/start.py",
        old='    for warning in _persist(stop, "store", lambda: store.probe(f"{config.pair}/")):\n',
        new='    for warning in _persist(stop, "store", lambda: store.probe(f"{config.pair}/"))[:0]:\n',
    ),
    Mistake(
        name="overlooking: a lifecycle rule for more than the backup does not reach it",
        file="sink/tandem/sink/store/s3/lifecycle.py",
        old="        reached = prefix.startswith(root) or root.startswith(prefix)\n",
        new="        reached = prefix.startswith(root)\n",
    ),
)
