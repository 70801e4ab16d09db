"""What is made of one damage, by `tandem verify` and on the way of a restore. Both run as they are, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from support.backups.build_backup import PAIR

from damage import documents
from damage.scene import Place, Row, Scene, rows
from damage.ways import Damage
from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.errors import TandemError
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.verify import verify_plan
from tandem.spark_jobs.verify.verify_objects import check_one, load, lost_of, missing_heads, numbers_of
from tandem.spark_jobs.verify.verify_plan import VerifyFinding


class Outcome(StrEnum):
    """How a damage ended. All are good but for the last."""

    BOTH = "verify found it, a restore refused or warned"
    VERIFY = "verify found it, a restore did not need it"
    OLDER = "the newest entry or claim is gone: an older state, whole"
    SAME = "the bytes mean the same"
    REFUSED = "a small document: who goes by it refuses it, or waits; a restore is whole"
    GONE = "a small document is deleted, which nobody can tell; a restore is whole"
    BAD = "not detected"


def judge(scene: Scene, done: Damage) -> tuple[Outcome, str]:
    """Return what became of a damage, and what was said of it."""
    found = _verify(scene.store)
    said, handed = _restore(scene.store)
    for place, got in handed.items():
        known = list(scene.originals[place].values()) if place in scene.originals else []
        if not _in_order(got, known):
            return Outcome.BAD, f"a restore hands on wrong records of {place}, saying {said or 'nothing'}"
    whole = handed == scene.sound
    if done.document:
        return _of_document(scene, done, whole=whole, said=said, found=found)
    if found:
        if said:
            return Outcome.BOTH, said
        return (
            (Outcome.VERIFY, found)
            if whole or done.end
            else (Outcome.BAD, "a restore leaves out records, and says nothing")
        )
    if done.end:
        return Outcome.OLDER, said or ""
    if whole and not said:
        return Outcome.SAME, ""
    return Outcome.BAD, f"verify finds nothing; a restore says {said or 'nothing'}, whole: {whole}"


def _of_document(
    scene: Scene, done: Damage, *, whole: bool, said: str | None, found: str | None
) -> tuple[Outcome, str]:
    """Judge damage to what no restore of the newest state needs, and no chain speaks of."""
    if not whole or said or found:
        return Outcome.BAD, f"a restore says {said or 'nothing'}, whole: {whole}; verify: {found or 'nothing'}"
    if done.gone:
        return Outcome.GONE, ""
    wrong = misread(scene)
    if wrong:
        return Outcome.BAD, wrong
    known = frozenset(scene.said)
    return (Outcome.SAME if documents.read_all(scene.store, known) == scene.said else Outcome.REFUSED), ""


def misread(scene: Scene) -> str | None:
    """Say which small document is read as another one, None if none is."""
    for name, now in documents.read_all(scene.store, frozenset(scene.said)).items():
        if not documents.fits(name, now, scene.said[name]):
            return f"{name} is read as {now}"
    return None


def _in_order(got: list[Row], known: list[Row]) -> bool:
    """Whether `got` are some of the records that were stored, each as it was and in their order."""
    rest = iter(known)
    return all(any(row == one for one in rest) for row in got)


class Fate(StrEnum):
    """How a forgery ended; verify found each. All are good but for the last."""

    REFUSED = "a restore refused before the first record"
    STOPPED = "a restore stopped at a data object; all records until then were true ones"
    DOCUMENT = "a small document: who goes by it refuses it; a restore was whole"
    UNNEEDED = "a restore did not need what was forged, and was whole"
    BAD = "not detected"


def judge_forged_document(scene: Scene, heads: Sequence[Head]) -> tuple[Fate, str]:
    """Return what became of a forged document that no chain speaks of. Verify does not look at those."""
    said, handed = _restore(scene.store, heads)
    wrong = misread(scene)
    if wrong or said or handed != scene.sound:
        return Fate.BAD, f"{wrong or 'all is read as it was'}; a restore says {said or 'nothing'}"
    return Fate.DOCUMENT, ""


def judge_forgery(scene: Scene, heads: Sequence[Head], *, by_head: bool) -> tuple[Fate, str]:
    """Return what became of a forgery, with signatures required and heads expected, and what was said of it.

    Unless it is told by a head (`by_head`), verify has to find it without.
    """
    found = _verify(scene.store, heads if by_head else ())
    said, handed = _restore(scene.store, heads)
    if found is None:
        return Fate.BAD, f"verify finds nothing; a restore says {said or 'nothing'}"
    for place, got in handed.items():
        if not _in_order(got, list(scene.originals[place].values()) if place in scene.originals else []):
            return Fate.BAD, f"a restore hands on forged records of {place}, saying {said or 'nothing'}"
    if handed == scene.sound:
        return Fate.UNNEEDED, found
    if said is None:
        return Fate.BAD, f"a restore leaves out records and says nothing; verify: {found}"
    return (Fate.STOPPED, said) if handed else (Fate.REFUSED, said)


def _verify(store: ObjectStore, heads: Sequence[Head] = ()) -> str | None:
    """Return the first thing that verify finds."""
    try:
        reader = ChainReader(store, PAIR, whole=True)
        states, findings = load(reader, numbers_of(reader), strict=False)
        findings += lost_of(reader, states) + missing_heads(reader, heads)
        results = [check_one(store, check) for check in verify_plan.plan_objects(states)]
        for state in states:
            prefix = layout.data_prefix(PAIR, state.instance, state.number)
            listed = {info.key: info.size for info in store.list(prefix)}
            findings += verify_plan.summarize(state, results, listed, verify_plan.check_state(state))[1]
    except TandemError as error:
        return str(error)
    if not ChainReader(store, PAIR).exists():
        return "nothing of this name"  # as require_pair says at once
    return _text(findings[0]) if findings else None


def _text(finding: VerifyFinding) -> str:
    return f"{finding.fault.value} {finding.where}: {finding.message}"


def _restore(store: ObjectStore, heads: Sequence[Head] = ()) -> tuple[str | None, dict[Place, list[Row]]]:
    """Return what a restore says, None if nothing, and the rows that it hands on until then."""
    handed: dict[Place, list[Row]] = {}
    try:
        reader = ChainReader(store, PAIR)
        reader.refresh(tolerant=True)
        for head in heads:
            reader.require(head)
        plan = plan_of(reader, RestoreOptions())
        for place, row in rows(store, plan):
            handed.setdefault(place, []).append(row)
    except TandemError as error:
        return str(error), handed
    return ("; ".join(plan.damaged.values()) or None), handed
