"""Mistakes in one history: the contents of a log against what was read."""
# ruff: noqa: E501 (places are quoted as they stand)

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="contents: a log is not compared when reading begins",
        file="sink/tandem/sink/read/tail.py",
        old="        if progress.recorded is not None:\n",
        new="        if progress.recorded is not None and progress.offset < 0:\n",
    ),
    Mistake(
        name="contents: a log is not compared when its broker was away",
        file="sink/tandem/sink/read/tail.py",
        old="                self._doubt(tp, progress)\n            case FaultKind.OUT_OF_RANGE:\n",
        new="                if fault.kind is not FaultKind.LEADER_LOST:\n                    self._doubt(tp, progress)\n            case FaultKind.OUT_OF_RANGE:\n",
    ),
    Mistake(
        name="contents: the comparison is skipped",
        file="sink/tandem/sink/read/tail.py",
        old="            found = log_identity.compare(self._source, wanted, self._context.record_keys)\n",
        new="            found = dict.fromkeys(wanted)\n",
    ),
    Mistake(
        name="contents: what comes before the comparison is believed",
        file="sink/tandem/sink/read/tail.py",
        old="            elif tp in self._doubtful:\n                self._doubtful[tp] = True\n            elif self._deferred",
        new="            elif self._deferred",
    ),
    Mistake(
        name="contents: sealed without a comparison",
        file="controller/tandem/controller/instance/act.py",
        old="        cut += self._prover.rewritten(writer.state, newer, set(covered).difference(taint.key for taint in cut))\n",
        new="        assert covered is not None\n",
    ),
    Mistake(
        name="contents: a record that was compacted away is taken for another one",
        file="sink/tandem/sink/read/log_identity.py",
        old="            if same is False:\n",
        new="            if not same:\n",
    ),
    Mistake(
        name="contents: the log is not compared again before the older copy is cleared",
        file="controller/tandem/controller/instance/act.py",
        old="            cut |= self._rewritten_covers(writer.state, asked - cut, generations, guarded)\n",
        new="",
    ),
    Mistake(
        name="contents: a generation whose log was cut nobody knows where covers an older copy",
        file="controller/tandem/controller/instance/act.py",
        old="                elif coverage.common_offset(newer, key) < mine.positions[key].offset:",
        new="                elif coverage.common_offset(newer, key) < -1:",
    ),
    Mistake(
        name="contents: a partition whose cover is refuted stays for good, though another generation may cover it",
        file="controller/tandem/controller/instance/act.py",
        old="if later is None or key not in later.positions or not self._log_lacks(mine, later, key):",
        new="if later is None or key not in later.positions:",
    ),
    Mistake(
        name="contents: a partition that no generation can cover any more is tried to be cleared for ever",
        file="controller/tandem/controller/instance/act.py",
        old="            later = coverage.successor(newer, generations)\n",
        new="            later = None\n",
    ),
    Mistake(
        name="contents: what a person lets go of is asked about again, and cleared for nothing at each look",
        file="controller/tandem/controller/instance/act.py",
        old=" or losses.found_lost(writer.state, key) is not None\n",
        new="\n",
    ),
    Mistake(
        name="contents: what a clearing found cut off can not be released",
        file="avro/tandem/backup_avro/selection/coverage.py",
        old="    settled = found_lost(older, key)\n",
        new="    settled = None\n",
    ),
    Mistake(
        name="contents: records that were handed out are not asked for again when their leader is lost",
        file="sink/tandem/sink/read/tail.py",
        old="        if self._doubtful.get(tp):",
        new="        if False:",
    ),
    Mistake(
        name="contents: a copy whose epochs a later one refutes is restored",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="        and 0 <= other.positions[key].epoch < here.epoch\n",
        new="        and 0 > other.positions[key].epoch\n",
    ),
    Mistake(
        name="contents: only a later generation refutes a copy by its epochs",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="        not cut_off(other, key)\n        and 0 <= other",
        new="        other.number > state.number\n        and not cut_off(other, key)\n        and 0 <= other",
    ),
    Mistake(
        name="contents: a sealed generation of another history is waited for",
        file="controller/tandem/controller/instance/act.py",
        old="        found = [short for short in found if not states[short.generation].sealed]\n",
        new="",
    ),
    Mistake(
        name="contents: a sealed copy that no log's epoch can reach is named nowhere",
        file="controller/tandem/controller/status/health.py",
        old="        _not_covered,\n",
        new="",
    ),
    Mistake(
        name="contents: the last record of a base leaves no hash",
        file="sink/tandem/sink/read/scan/local_ranges.py",
        old="            progress.add_scanned(self._newest.pop(tp, None))\n",
        new="            self._newest.pop(tp, None)\n",
    ),
    Mistake(
        name="contents: a base of an unknown log goes on when its leader was away",
        file="sink/tandem/sink/read/scan/accept_ranges.py",
        old="    if stays and (progress.recognizable or not begun):\n",
        new="    if stays:\n",
    ),
    Mistake(
        name="contents: the tail does not tell the scan that its leader was away",
        file="sink/tandem/sink/read/tail.py",
        old="                self.moved.append((tp, fault.new_leader, fault.new_epoch))\n",
        new="                if fault.kind is not FaultKind.LEADER_LOST:\n                    self.moved.append((tp, fault.new_leader, fault.new_epoch))\n",
    ),
    Mistake(
        name="contents: a scan does not mind that its leader was away",
        file="sink/tandem/sink/read/scan/local_ranges.py",
        old="            case FaultKind.LEADER_MOVED | FaultKind.EPOCH_RAISED | FaultKind.LEADER_LOST:\n",
        new="            case FaultKind.LEADER_LOST:\n                pass\n            case FaultKind.LEADER_MOVED | FaultKind.EPOCH_RAISED:\n",
    ),
    Mistake(
        name="contents: the hash that an offer brings is not taken",
        file="sink/tandem/sink/read/scan/accept_ranges.py",
        old="            progress.add_scanned(newest)\n",
        new="            pass\n",
    ),
    Mistake(
        name="contents: a hash that nobody here can compare stands for one that tells",
        file="sink/tandem/sink/read/scan/accept_ranges.py",
        old=" and context.record_keys.can_compare(newest)",
        new="",
    ),
    Mistake(
        name="contents: records that waited for memory overtake the loss of their leader",
        file="sink/tandem/sink/read/deferred_responses.py",
        old="last if isinstance(event, AtHead) else",
        new="last if isinstance(event, (AtHead, FetchFault)) else",
    ),
    Mistake(
        name="contents: the next life goes on with a scan of an unknown log",
        file="sink/tandem/sink/pipeline.py",
        old="        if not (led_by and is_recognizable(progress.scan, last_known(before.hashes))):\n",
        new="        if not led_by:\n",
    ),
    Mistake(
        name="contents: what lies above the last known record is read with all else",
        file="sink/tandem/sink/read/progress/next_scan_range.py",
        old="(self.seam, *self._stops)",
        new="self._stops",
    ),
    Mistake(
        name="contents: workers are not told which record is known",
        file="sink/tandem/sink/read/scan/worker_ranges.py",
        old="known_to=progress.known_to",
        new="known_to=1 << 60",
    ),
    Mistake(
        name="contents: a job is not told which record is known",
        file="sink/tandem/sink/read/scan/range_tasks.py",
        old="-1 if position is None else last_known(position.hashes)",
        new="1 << 60",
    ),
    Mistake(
        name="contents: the loss of a leader is forgotten where no record is known yet",
        file="sink/tandem/sink/read/tail.py",
        old="        self._doubtful[tp] = False\n",
        new="        if progress.hashes:\n            self._doubtful[tp] = False\n",
    ),
    Mistake(
        name="contents: hashes that nobody can compare are all that is known",
        file="sink/tandem/sink/read/new_partitions.py",
        old="not any(self._record_keys.can_compare(one) for one in before.hashes)",
        new="not before.hashes",
    ),
    Mistake(
        name="contents: a log that ends in markers is known by nothing",
        file="sink/tandem/sink/read/log_identity.py",
        old="if tp in found and found[tp] is None and asked[tp].offset > place.offset\n",
        new="if tp in found and found[tp] is None and asked[tp].offset < place.offset\n",
    ),
    Mistake(
        name="contents: a log that had no record is not looked at again",
        file="sink/tandem/sink/read/tail.py",
        old="empty=progress.found_empty",
        new="empty=False",
    ),
    Mistake(
        name="contents: another life takes the first record it finds for one that was read",
        file="sink/tandem/sink/pipeline.py",
        old="known=before.hashes if found_empty else new_partition.hashes",
        new="known=new_partition.hashes",
    ),
    Mistake(
        name="contents: records that left no hash in the chain are taken for none",
        file="sink/tandem/sink/pipeline.py",
        old="            unhashed=key in unhashed,\n",
        new="",
    ),
    Mistake(
        name="contents: records that a job has read and hashed with another key are taken for none",
        file="sink/tandem/sink/read/scan/accept_ranges.py",
        old="            progress.unhashed = True\n",
        new="            progress.unhashed = False\n",
    ),
    Mistake(
        name="contents: a record of an aborted transaction is taken for one that a reader is given",
        file="sink/tandem/sink/kafka/lookup/record_lookup.py",
        old="return self._read_committed and self._places[tp].readable",
        new="return False",
    ),
    Mistake(
        name="contents: what an open transaction may still commit is taken for no record",
        file="sink/tandem/sink/kafka/lookup/record_lookup.py",
        old="if self._is_committed(tp) and data.last_stable_offset < self._places[tp].until:",
        new="if self._is_committed(tp) and data.last_stable_offset < 0:",
    ),
    Mistake(
        name="contents: a log that had no record is looked at from its first offset on, not from its start",
        file="sink/tandem/sink/read/log_identity.py",
        old="wanted[tp].topic_id, known.start, wanted",
        new="wanted[tp].topic_id, 0, wanted",
    ),
)
