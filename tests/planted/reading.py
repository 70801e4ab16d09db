"""Mistakes in reading logs: fetch, tail and scan."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = (
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
        old="        if record is None:\n            if to > start:",
        new="        if True:\n            if to > start:",
    ),
    Mistake(
        name="a last record is held against ends that its copy has not read",
        file="avro/tandem/backup_avro/selection/last_records.py",
        old="and (record.position >= end or now < record.until)",
        new="and (record.position >= start or now < record.until)",
    ),
    Mistake(
        name="an end below the position counts as at head",
        file="sink/tandem/sink/read/tail.py",
        old="if track.offset == fetched.end_offset:",
        new="if track.offset >= fetched.end_offset:",
    ),
    Mistake(
        name="the end that a dropped answer told is taken for known",
        file="sink/tandem/sink/kafka/fetch/responses.py",
        old="                part.end = part.high_watermark = -1\n",
        new="",
    ),
    Mistake(
        name="positions are looked through while the committer adds some",
        file="sink/tandem/sink/write/commit_draft.py",
        old="for key in list(self._state.positions) if key not in read",
        new="for key in self._state.positions if key not in read",
    ),
)
