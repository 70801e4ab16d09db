"""Mistakes in floods, forgeries and numbers out of range."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="a build has to reach what the Active has by now",
        file="avro/tandem/backup_avro/selection/completion.py",
        old="    return NotedPositions(offsets, (*noted.looks[-_COMMITS_BACK:], look))\n",
        new="    return NotedPositions(offsets, (look,))\n",
    ),
    Mistake(
        name="a build has to reach what the Active had when it was first read through",
        file="avro/tandem/backup_avro/selection/completion.py",
        old="    if noted.looks and offsets == noted.offsets:\n",
        new="    if noted.looks:\n",
    ),
    Mistake(
        name="an earlier position counts in a later epoch",
        file="avro/tandem/backup_avro/selection/completion.py",
        old=" or not before.epoch == other.positions[key].epoch == here.epoch:\n",
        new=" or before.epoch != other.positions[key].epoch:\n",
    ),
    Mistake(
        name="positions of others are noted before a build is read through",
        file="avro/tandem/backup_avro/selection/completion.py",
        old="    if mine.complete or obstacles(mine, (), guarded):\n",
        new="    if mine.complete:\n",
    ),
    Mistake(
        name="a restart goes on with every build there is",
        file="controller/tandem/controller/decision/decide.py",
        old="    if any(g.number > number and _wanted(g, seen, policy) for g in held):\n",
        new="    if any(g.number > number and g.complete for g in held):\n",
    ),
    Mistake(
        name="a build begins while the one before it is drained",
        file="controller/tandem/controller/decision/decide.py",
        old="    if start and any(_takes_memory(g, seen) for g in held if g.number != number):\n        return []\n",
        new="",
    ),
    Mistake(
        name="every request for a turn is granted at once",
        file="controller/tandem/controller/decision/decide.py",
        old="    if asked is not None and _may_be_granted(seen, policy):\n",
        new="    if asked is not None:\n",
    ),
    Mistake(
        name="a request from the future overrules every pause",
        file="controller/tandem/controller/decision/decide.py",
        old="    return activation.by_person and pause.at <= activation.at <= latest\n",
        new="    return activation.by_person and pause.at <= activation.at\n",
    ),
    Mistake(
        name="a request for a turn that nobody signed counts",
        file="controller/tandem/controller/coordination/peer_state.py",
        old="if message.pair != self._pair or not self._counts(message):",
        new="if message.pair != self._pair:",
    ),
    Mistake(
        name="a reader's pin lasts as long as it says",
        file="sink/tandem/sink/store/chain/pins.py",
        old='pin = _bounded(_read(store, name.removesuffix(".json"), item.key), item)\n',
        new='pin = _read(store, name.removesuffix(".json"), item.key)\n',
    ),
    Mistake(
        name="a heartbeat from the future is a sign of life",
        file="controller/tandem/controller/decision/pair_rules.py",
        old="    return not left and abs(silent_s) < policy.liveness_timeout_s\n",
        new="    return not left and silent_s < policy.liveness_timeout_s\n",
    ),
    Mistake(
        name="what a message says of its time counts for more than the brokers' word",
        file="controller/tandem/controller/coordination/peer_state.py",
        old="        at = message.at if appended_at is None else min(message.at, appended_at)\n",
        new="        at = message.at\n",
    ),
    Mistake(
        name="a message may hold any number",
        file="avro/tandem/backup_avro/documents/coordination_message.py",
        old="    problem = _out_of_range(message)\n    if problem:\n",
        new="    problem = None\n    if problem:\n",
    ),
    Mistake(
        name="bytes that Avro's library lets pass are a message",
        file="avro/tandem/backup_avro/documents/coordination_message.py",
        old="    if canonical != body:\n",
        new="    if len(canonical) > len(body):\n",
    ),
    Mistake(
        name="a role that no transition leads to is taken all the same",
        file="controller/tandem/controller/decision/role_machine.py",
        old='        raise ValueError(f"no transition leads from {self.role.value} to {role.value}")\n',
        new="        return str(self._machine.set_state(role))\n",
    ),
    Mistake(
        name="a document may hold any time",
        file="avro/tandem/backup_avro/chain/json_codec.py",
        old="        if value is not default and not is_moment(value):\n",
        new="        if value is not default and not is_int64(value):\n",
    ),
    Mistake(
        name="an interval after the last time there is can't be shown",
        file="avro/tandem/backup_avro/chain/integers.py",
        old="timedelta(milliseconds=min(max(at, FIRST_MOMENT), LAST_MOMENT))",
        new="timedelta(milliseconds=at)",
    ),
    Mistake(
        name="each record of junk is a line in the log",
        file="sink/tandem/sink/process/rates.py",
        old="            if not known.bucket.take_token(self._clock()):\n",
        new="            if known.bucket is None:\n",
    ),
    Mistake(
        name="each message wakes the instance",
        file="controller/tandem/controller/coordination/topic.py",
        old="        if self._wake is not None and wakes and self._wakes.take_token(now):\n",
        new="        if self._wake is not None and wakes:\n",
    ),
    Mistake(
        name="each hint has the store looked at",
        file="controller/tandem/controller/instance/message_watch.py",
        old="        if self._hurries.take_token(time.monotonic()):\n            self._watch.read_soon()\n",
        new="        self._watch.read_soon()\n",
    ),
    Mistake(
        name="each hint has all checkpoints looked at",
        file="controller/tandem/controller/watch/checkpoint_keeper.py",
        old="        if not rested and (hints == self._hints or not self._hurries.take_token(now_mono)):\n",
        new="        if not rested and hints == self._hints:\n",
    ),
    Mistake(
        name="a client's header ends the page of metrics",
        file="controller/tandem/controller/metrics/page.py",
        old="        except (TypeError, ValueError):  # a version that is none\n",
        new="        except ValueError:  # a version that is none\n",
    ),
    Mistake(
        name="a claim that does not count is read at each look",
        file="sink/tandem/sink/store/chain/chain_reader.py",
        old="                self._origin_due = self._refreshes + _LOOK_AGAIN\n",
        new="                return None\n",
    ),
    Mistake(
        name="heads that never were keep an instance from its first decision",
        file="controller/tandem/controller/instance/loop.py",
        old="self._last is not None or waited_s >= self._policy.liveness_timeout_s\n",
        new="self._last is not None\n",
    ),
    Mistake(
        name="a claim from before the clock was set back is still a build",
        file="controller/tandem/controller/decision/pair_rules.py",
        old="    if over or (generation.seq == 0 and not is_recent(generation.claim.at, now=now, policy=policy)):\n",
        new="    if over or (generation.seq == 0 and now - generation.claim.at >= policy.liveness_timeout_s * 1000):\n",
    ),
    Mistake(
        name="the last message of a former process ends its successor",
        file="controller/tandem/controller/coordination/peer_state.py",
        old="        if not leaves or known is None or known is newest:\n",
        new="        if leaves or known is None or known is not None:\n",
    ),
    Mistake(
        name="a number in a heartbeat may be anything",
        file="controller/tandem/controller/coordination/heartbeat.py",
        old="(number_in(text, most=LAST_GENERATION) for text in",
        new="(int(text or 0) for text in",
    ),
    Mistake(
        name="a page is read under a stranger's name",
        file="controller/tandem/controller/http/host_names.py",
        old="        return known or name in self._own_names()\n",
        new="        return known or bool(self._own_names())\n",
    ),
)
