"""The mistakes: small edits that a tired person might make, each in one place of the production code."""
# ruff: noqa: E501 (places are quoted as they stand)

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """`old` stands exactly once in `file` and is replaced by `new`."""

    name: str
    file: str
    old: str
    new: str


MISTAKES = (
    Mistake(
        name="a commit names objects before they are stored",
        file="sink/tandem/sink/write/commit.py",
        old="        stored, refused = self._store_objects(draft, pool)\n",
        new="        built = [item.build() for item in draft.objects]\n"
        "        stored, refused = [*draft.stored, *(item.item for item in built)], dict[str, str]()\n"
        "        for item in built:\n"
        "            pool.submit(self._store.put_if_absent, item.item.key, item.data)\n",
    ),
    Mistake(
        name="cleared because any newer generation is complete",
        file="avro/tandem/backup_avro/selection/coverage.py",
        old="if covered or (lost",
        new="if newer or (lost",
    ),
    Mistake(
        name="one partition is forgotten at the handover",
        file="avro/tandem/backup_avro/selection/coverage.py",
        old="for key in older.positions if guarded.has(key) and cover(newer",
        new="for key in list(older.positions)[1:] if guarded.has(key) and cover(newer",
    ),
    Mistake(
        name="a 412 is taken for success",
        file="sink/tandem/sink/store/chain/chain_writer.py",
        old="            ours = store.put_if_absent(key, data) is PutResult.CREATED or store.get(key) == data",
        new="            ours = store.put_if_absent(key, data) in {PutResult.CREATED, PutResult.EXISTS}",
    ),
    Mistake(
        name="the end that a leader names ends a chunk that goes further",
        file="sink/tandem/sink/read/scan/local_ranges.py",
        old="if fetched.evidence is None or fetched.end_offset < high:",
        new="if fetched.evidence is None:",
    ),
    Mistake(
        name="two processes of one name wait for each other",
        file="controller/tandem/controller/decision/decide.py",
        old="        return theirs > max((g.number for g in held), default=0)",
        new="        return True",
    ),
    Mistake(
        name="claims behind a hole are not seen",
        file="sink/tandem/sink/store/chain/chain_reader.py",
        old="        self._numbers |= set(self._claims())\n",
        new="        found = set(self._claims())\n"
        "        self._numbers |= {number for number in found if set(range(1, number)) <= found}\n",
    ),
    Mistake(
        name="an empty value becomes a tombstone",
        file="sink/tandem/sink/transcode/batch_to_avro.py",
        old="        if byte & 1:\n            value = None\n",
        new="        if byte <= 1:\n            value = None\n",
    ),
    Mistake(
        name="a gap at head is no taint",
        file="sink/tandem/sink/read/progress/tombstone_guarantee.py",
        old=" or gap_s <= longest_gap_s(retention_s):\n",
        new=" or gap_s <= longest_gap_s(retention_s) * 1000:\n",
    ),
    Mistake(
        name="complete without having been at head after the base",
        file="avro/tandem/backup_avro/chain/generation.py",
        old=" and self.head_at(key) > position.base.done_at",
        new="",
    ),
    Mistake(
        name="a slow chunk counts",
        file="sink/tandem/sink/read/progress/next_scan_range.py",
        old="        if took > self.limit_s:\n",
        new="        if took > self.limit_s * 1000:\n",
    ),
    Mistake(
        name="a moved leader is no reason to scan again",
        file="sink/tandem/sink/read/scan/accept_ranges.py",
        old="    if progress is None or progress.scan.base.complete:\n",
        new="    if progress is None or progress.scan.base.complete or leader >= 0:\n",
    ),
    Mistake(
        name="topic ids are not checked before a commit",
        file="sink/tandem/sink/write/commit.py",
        old="        lost = self._lost(draft.names) if draft.positions else frozenset[str]()",
        new="        lost = frozenset[str]()",
    ),
    Mistake(
        name="an older process appends on after a takeover",
        file="sink/tandem/sink/store/chain/chain_writer.py",
        old="        if held and self.state.holder != self._incarnation and wanted is not EntryKind.TAKEOVER:",
        new="        if not held and wanted is EntryKind.SEALED:",
    ),
    Mistake(
        name="who writes an entry is not checked",
        file="avro/tandem/backup_avro/chain/generation.py",
        old="    if entry.kind in _HOLDER_ONLY and entry.incarnation != state.holder and not _marks_a_cut(state, entry):",
        new="    if entry.kind is EntryKind.OPEN and entry.incarnation != state.holder and state.holder:",
    ),
    Mistake(
        name="pins are not looked at",
        file="sink/tandem/sink/store/chain/pins.py",
        old="    return [pin for pin in pins if pin.holds(generation, now)]",
        new="    return [pin for pin in pins if pin.holds(generation, now) and now < 0]",
    ),
    Mistake(
        name="what was cut off is read over",
        file="sink/tandem/sink/read/progress/partition_progress.py",
        old="        self.frozen = True\n",
        new="        self.frozen = False\n",
    ),
    Mistake(
        name="records that were deleted before they were read are no taint",
        file="sink/tandem/sink/read/tail.py",
        old="            progress.lost = why\n",
        new="",
    ),
    Mistake(
        name="an older state is preferred for a restore",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="    return sorted(usable, key=lambda g: (g.whole, not g.taints, g.number), reverse=True)",
        new="    return sorted(usable, key=lambda g: (g.whole, not g.taints, -g.number), reverse=True)",
    ),
    Mistake(
        name="two scans are joined inside",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="        if other.sound_epoch(key) == epoch and end >= told_from:\n            slices.extend",
        new="        if other.sound_epoch(key) == epoch and end >= there.base.start:\n            slices.extend",
    ),
    Mistake(
        name="two histories are joined",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="        if other.sound_epoch(key) == epoch and end >= told_from:\n            slices.extend",
        new="        if end >= told_from:\n            slices.extend",
    ),
    Mistake(
        name="what is sound counts by the epoch of what is not",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="        end, epoch = reach, other.sound_epoch(key)",
        new="        end, epoch = reach, there.epoch",
    ),
    Mistake(
        name="void attempts count",
        file="avro/tandem/backup_avro/chain/entries.py",
        old="        return attempt >= self.floor and attempt not in self.void",
        new="        return attempt >= self.floor",
    ),
    Mistake(
        name="attempts before a new start count",
        file="avro/tandem/backup_avro/chain/entries.py",
        old="        return attempt >= self.floor and attempt not in self.void",
        new="        return attempt not in self.void",
    ),
    Mistake(
        name="an aborted transaction is stored",
        file="sink/tandem/sink/transcode/plain_transcoder.py",
        old="        transactions = AbortedTransactions(aborted) if read_committed else None",
        new="        transactions = AbortedTransactions(aborted) if not read_committed else None",
    ),
    Mistake(
        name="complete only by the topics that were there at the beginning",
        file="avro/tandem/backup_avro/selection/completion.py",
        old="    for key in guarded.partitions():\n        position = mine.positions.get(key)\n",
        new="    for key in mine.positions.keys() & set(guarded.partitions()):\n        position = mine.positions.get(key)\n",
    ),
    Mistake(
        name="complete although a complete generation reaches further",
        file="avro/tandem/backup_avro/selection/completion.py",
        old="            if held and not _reaches(mine, other, key) and not _reached_before(mine, other, key, earlier):\n",
        new="            if held and not mine.positions:\n",
    ),
    Mistake(
        name="clearing deletes what stays",
        file="sink/tandem/sink/write/clear_generation.py",
        old="any(part.key in clearing.stays for part in item.parts)",
        new="any(part.key in clearing.goes for part in item.parts)",
    ),
    Mistake(
        name="the epoch does not matter for coverage",
        file="avro/tandem/backup_avro/selection/coverage.py",
        old="    if newer.sound_offset(key) >= old.offset and new.epoch >= old.epoch:\n",
        new="    if newer.sound_offset(key) >= old.offset:\n",
    ),
    Mistake(
        name="a taint does not limit what is covered",
        file="avro/tandem/backup_avro/selection/coverage.py",
        old="    if newer.sound_offset(key) >= old.offset and new.epoch >= old.epoch:\n",
        new="    if new.offset >= old.offset and new.epoch >= old.epoch:\n",
    ),
    Mistake(
        name="at head as of the answer, not as of the question",
        file="sink/tandem/sink/read/progress/partition_progress.py",
        old="        self.head_mono = requested\n",
        new="        self.head_mono = received\n",
    ),
    Mistake(
        name="objects are not confirmed before COMPLETE",
        file="sink/tandem/sink/write/confirm.py",
        old="    if size == item.bytes:\n",
        new="    if size != -1:\n",
    ),
    Mistake(
        name="sealed without a look at fresh chains",
        file="controller/tandem/controller/instance/act.py",
        old="        if newer is None or coverage.uncovered_partitions(newer, writer.state, guarded):\n            return\n",
        new="        if newer is None:\n            return\n",
    ),
    Mistake(
        name="the scan goes from low to high",
        file="sink/tandem/sink/read/progress/next_scan_range.py",
        old="        self._chunk = ScanRange(low=self.lowest(high, self._size), high=high, attempt=attempt)\n",
        new="        self._chunk = ScanRange(low=self._base.start, high=high, attempt=attempt)\n        self.limit_s = 1e9\n",
    ),
    Mistake(
        name="checkpoint: completed without a pin",
        file="controller/tandem/controller/watch/checkpoint_keeper.py",
        old="        pin = checkpoints.pin_generation(self._store, request, state.number)\n",
        new='        pin = pins.Pin(id="none", generation=state.number, owner="", until=0)\n',
    ),
    Mistake(
        name="checkpoint: clearing begins all the same",
        file="sink/tandem/sink/write/clear_generation.py",
        old="        if kept:\n",
        new="        if not kept:\n            pass\n        elif wanted is None:\n",
    ),
    Mistake(
        name="checkpoint: what was read later counts beyond the cut",
        file="avro/tandem/backup_avro/documents/checkpoint.py",
        old="            if position.offset > offset and state.number not in request.witnesses:\n",
        new="            if position.offset > offset and not request.witnesses:\n",
    ),
    Mistake(
        name="checkpoint: what is behind the cut counts as there",
        file="avro/tandem/backup_avro/documents/checkpoint.py",
        old="state.usable(key) and position.offset >= offset:\n",
        new="state.usable(key) and position.offset >= offset - 1:\n",
    ),
    Mistake(
        name="checkpoint: a completed one is swept",
        file="sink/tandem/sink/store/chain/checkpoints.py",
        old="owner.outcome is None or pin.generation in {None, owner.outcome.generation}",
        new="owner.outcome is None",
    ),
    Mistake(
        name="sweep: what was tainted meanwhile is swept",
        file="spark_jobs/tandem/spark_jobs/retention/sweep.py",
        old="writer.append(_rewrite(sweep, found), unless=outdated)",
        new="writer.append(_rewrite(sweep, found))",
    ),
    Mistake(
        name="checkpoint: the brokers are not asked about the logs",
        file="controller/tandem/controller/watch/checkpoint_keeper.py",
        old="            if same:\n",
        new="            if same or requests:\n",
    ),
    Mistake(
        name="reader: does not look again after its pin",
        file="spark_jobs/tandem/spark_jobs/restore/prepare/prepare.py",
        old="            if state is None or not state.usable(item.key):\n",
        new="            if state is None:\n",
    ),
    Mistake(
        name="reader: its pin is not renewed",
        file="sink/tandem/sink/store/chain/pins.py",
        old="            for pin in kept:\n                pin.renew()\n",
        new="            for pin in kept[1:]:\n                pin.renew()\n",
    ),
    Mistake(
        name="release: it stands in for coverage",
        file="avro/tandem/backup_avro/selection/coverage.py",
        old="        if covered or (lost and key in released):\n",
        new="        if covered or key in released:\n",
    ),
    Mistake(
        name="release: every life of a topic is let go",
        file="avro/tandem/backup_avro/documents/release.py",
        old="            and key.topic_id == self.topic_id\n",
        new='            and key.topic_id != ""\n',
    ),
    Mistake(
        name="release: nobody acts on it",
        file="controller/tandem/controller/decision/decide.py",
        old="seen.guarded, released(seen.releases, generation))",
        new="seen.guarded)",
    ),
    Mistake(
        name="pause: instances claim all the same",
        file="controller/tandem/controller/decision/decide.py",
        old="    if in_force(seen.pause, seen.at) is not None:\n        return [], Reason.PAUSED\n",
        new="",
    ),
    Mistake(
        name="pause: a wish from before it is taken for insisting",
        file="controller/tandem/controller/decision/decide.py",
        old="    return activation.by_person and pause.at <= activation.at <= latest\n",
        new="    return activation.by_person and activation.at <= latest\n",
    ),
    Mistake(
        name="pause: it never ends",
        file="avro/tandem/backup_avro/documents/pause.py",
        old="newest.until is not None and now < newest.until",
        new="newest.until is not None",
    ),
    Mistake(
        name="an end below another generation's is taken for a cut",
        file="controller/tandem/controller/instance/act.py",
        old="            self._prover.cut_off(other, mine, [short.key for short in found if short.generation == other.number])\n",
        new="            assert other.number\n",
    ),
    Mistake(
        name="the brokers are never asked about an idle log",
        file="controller/tandem/controller/decision/decide.py",
        old="seen.generations, seen.guarded, maybe_cut, earlier)",
        new="seen.generations, seen.guarded, (), earlier)",
    ),
    Mistake(
        name="a log start that another generation knows is forgotten",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="        if know is not None and know.positions[key].log_start > log_start:\n",
        new="        if know is chosen:\n",
    ),
    Mistake(
        name="a merge takes objects whose base is still being read",
        file="sink/tandem/sink/write/merge_plan.py",
        old="    return all(part.scan is None or state.positions[part.key].base.complete for part in item.parts)\n",
        new="    return bool(item.parts)\n",
    ),
    Mistake(
        name="a merge joins parts with others in between",
        file="sink/tandem/sink/write/merge_plan.py",
        old="before.last < piece.part.first and at == skipped\n",
        new="before.last < piece.part.first\n",
    ),
    Mistake(
        name="a merge copies what did not count",
        file="sink/tandem/sink/write/merge_plan.py",
        old="for part in item.parts if state.counts(part)]\n",
        new="for part in item.parts]\n",
    ),
    Mistake(
        name="a merge is in the chain before its objects are stored",
        file="sink/tandem/sink/write/merge.py",
        old="        put_new(self._store, key, data)\n",
        new="        assert key != data\n",
    ),
    Mistake(
        name="what a merge replaced is deleted under a reader",
        file="sink/tandem/sink/write/merge.py",
        old="        if not all(map(self._is_known, holding)):\n            return\n",
        new="        all(map(self._is_known, holding))\n",
    ),
    Mistake(
        name="what a checkpoint needs is deleted after a merge",
        file="sink/tandem/sink/write/merge.py",
        old="any(self._is_needed(one, seqs) for one in (key, *before.get(key, ())))",
        new="key in seqs",
    ),
    Mistake(
        name="what a merge replaced is deleted at once",
        file="sink/tandem/sink/write/merge.py",
        old=" if now - at > self._rules.grace_ms and key not in self._deleted]\n",
        new=" if now >= at and key not in self._deleted]\n",
    ),
    Mistake(
        name="a merge copies damaged bytes",
        file="sink/tandem/sink/write/merge.py",
        old="        if sha256_hex(data) != item.sha256:\n",
        new="        if sha256_hex(data) != item.sha256 and not item.key:\n",
    ),
    Mistake(
        name="a journal's parts are read unchecked",
        file="sink/tandem/sink/store/encrypted_objects.py",
        old="        if found != part.sha256:\n",
        new="        if found != part.sha256 and not item.key:\n",
    ),
    Mistake(
        name="who has the data key is believed",
        file="sink/tandem/sink/store/encrypted_objects.py",
        old="        if found != part.sha256:\n",
        new="        if found != part.sha256 and item.envelope is None:\n",
    ),
    Mistake(
        name="a range counts whenever it was read",
        file="sink/tandem/sink/read/scan/accept_ranges.py",
        old="        return max(overlap, float(above.at - offer.started_at)) if read.elsewhere else overlap\n",
        new="        return -math.inf if read.elsewhere else overlap\n",
    ),
    Mistake(
        name="what was refused is deleted by a process that may have lost the chain",
        file="sink/tandem/sink/read/scan/spark_ranges.py",
        old="            self._refused.append(offer)\n",
        new="            self._throw_away(listed.name)\n",
    ),
    Mistake(
        name="a range is taken wherever the base stands",
        file="sink/tandem/sink/read/scan/range_tasks.py",
        old=" and item.high == scan.low and",
        new=" and item.low < scan.low and",
    ),
    Mistake(
        name="a worker offers what a slow attempt stored",
        file="sink/tandem/sink/read/scan/range_reader.py",
        old="if part.scan is not None and base.counts(part.scan))",
        new="if part.scan is not None)",
    ),
    Mistake(
        name="a worker goes on with another leader",
        file="sink/tandem/sink/read/scan/range_reader.py",
        old="            if base.floor > 1:  # it was begun anew\n",
        new="            if base.leader < 0:\n",
    ),
    Mistake(
        name="a worker's range counts whenever it was read",
        file="sink/tandem/sink/read/scan/accept_ranges.py",
        old="        return max(overlap, float(above.at - offer.started_at)) if read.elsewhere else overlap\n",
        new="        return max(overlap, float(above.at - offer.started_at)) if read.elsewhere else -math.inf\n",
    ),
    Mistake(
        name="after a restart nothing lies above a worker's range",
        file="sink/tandem/sink/read/scan/accept_ranges.py",
        old="        return self._begun if base.done else None\n",
        new="        return None\n",
    ),
    Mistake(
        name="a range of another generation is taken",
        file="sink/tandem/sink/read/scan/accept_ranges.py",
        old="        if (offer.generation, offer.key) != (self._state.number, progress.key):\n",
        new="        if offer.key != progress.key:\n",
    ),
    Mistake(
        name="what was read from the old leader is taken",
        file="sink/tandem/sink/read/scan/range_tasks.py",
        old="    return (item.floor, item.leader) == (base.floor, base.leader)\n",
        new="    return base.floor > 0 or item.floor > 0\n",
    ),
    Mistake(
        name="a snapshot forgets a taint",
        file="avro/tandem/backup_avro/chain/snapshot.py",
        old='        "taints": [dump_taint(taint) for taint in state.taints.values()],\n',
        new='        "taints": [],\n',
    ),
    Mistake(
        name="a snapshot forgets since when a position was at head",
        file="avro/tandem/backup_avro/chain/snapshot.py",
        old="{key: state.restated(key) for key in state.positions}",
        new="dict(state.positions)",
    ),
    Mistake(
        name="a base goes on with a leader that another one had replaced",
        file="sink/tandem/sink/read/progress/next_scan_range.py",
        old="        if epoch > base.epoch + 1 and base.epoch >= 0:\n",
        new="        if epoch > base.epoch + 1000 and base.epoch >= 0:\n",
    ),
    Mistake(
        name="the store's clock alone says how long nobody read",
        file="sink/tandem/sink/pipeline.py",
        old="skew=state.skew(key), store_ms=store_ms",
        new="skew=None, store_ms=store_ms",
    ),
    Mistake(
        name="what an earlier life saw is told by this one's clocks",
        file="sink/tandem/sink/commit_draft.py",
        old=" or progress.skew is not None\n",
        new="\n",
    ),
    Mistake(
        name="what was missed is judged by what is promised now",
        file="sink/tandem/sink/read/progress/partition_progress.py",
        old="        self.held_to_s = shorter_guarantee(self.held_to_s, retention_s)\n",
        new="        self.held_to_s = retention_s\n",
    ),
    Mistake(
        name="the chain learns of a longer promise before what was missed is judged",
        file="sink/tandem/sink/commit_draft.py",
        old="        if settled.issuperset(",
        new="        if settled is not None or settled.issuperset(",
    ),
    Mistake(
        name="what came late is judged by a promise that may have been shorter",
        file="sink/tandem/sink/commit_draft.py",
        old="        if now - self._unsure_since < _PATIENCE_S:\n",
        new="        if now - self._unsure_since < 0:\n",
    ),
    Mistake(
        name="what was committed before its base was done is sound",
        file="sink/tandem/sink/read/progress/partition_progress.py",
        old="        sound = committed if self._proven else self.scan.base.start\n",
        new="        sound = committed\n",
    ),
    Mistake(
        name="a scan that is in doubt is put on another copy",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="    return taken.used == [state.number] or state.told_from(taken.key) <= taken.end\n",
        new="    return True\n",
    ),
    Mistake(
        name="a copy that ends before its scan was done takes another one's place",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="        elif instead and reach >= other.state_from(key):\n",
        new="        elif instead and reach >= told_from:\n",
    ),
    Mistake(
        name="a bound below what was read until the scan was done is a state",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="        told = states[piece.generations[0]].state_from(piece.key)\n",
        new="        told = states[piece.generations[0]].told_from(piece.key)\n",
    ),
    Mistake(
        name="what a cut left is reached where the older copy is sound",
        file="avro/tandem/backup_avro/selection/coverage.py",
        old="    if newer.sound_offset(key) >= taint.cut_at:\n",
        new="    if newer.sound_offset(key) >= common_offset(older, key):\n",
    ),
    Mistake(
        name="an Active that nobody can hear is replaced again and again",
        file="controller/tandem/controller/decision/liveness.py",
        old="    return not (seen.deaf or went_on_unheard) or ",
        new="    return True or went_on_unheard or ",
    ),
)
