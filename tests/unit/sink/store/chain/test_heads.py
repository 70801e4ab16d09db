"""Heads: an entry that is known to have been written, held against what the store has now."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR, Backup, records
from support.pairs.sights import message, sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.heads import Head, RolledBackError, longest
from tandem.backup_avro.chain.signatures import SignatureError, Signer
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.controller.cli.main import run
from tandem.controller.coordination import agreement, heads
from tandem.controller.coordination.bounded_memory import HEADS
from tandem.controller.coordination.heartbeat import HEAD_SHA256, Heartbeat, head_fields, heartbeat_in, message_fields
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.status.health import Fault
from tandem.controller.status.overview import overview
from tandem.sink.store import ObjectStore, StoreAccess, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.wanted_state import StateRequest
from tandem.spark_jobs.state.find_state import find_state
from tandem.spark_jobs.state.read_options import parse_options, store_options
from tandem.spark_jobs.verify.verify_objects import missing_heads
from tandem.spark_jobs.verify.verify_plan import VerifyFault as Mismatch

SHA = "ab" * 32


@pytest.fixture
def store() -> MemoryStore:
    """A store in memory."""
    return MemoryStore()


def backup(store: ObjectStore, number: int = 1, instance: str = "a") -> Backup:
    """A complete generation of five entries."""
    found = Backup.completed(store, records("orders", 0, range(10)), number=number, instance=instance)
    found.commit(records("orders", 0, range(10, 12)))
    return found


def head_of(state: Generation) -> Head:
    """The head of a state."""
    return Head.of(state)


def entry(seq: int, number: int = 1) -> str:
    """The key of an entry."""
    return layout.entry_key(PAIR, number, seq)


def test_a_head_is_a_text_and_back() -> None:
    """As `describe` shows it and --expect-head takes it; a claim is entry 0."""
    head = Head(generation=7, seq=42, sha256=SHA)
    assert Head.parse("--expect-head", f" {head}\n") == head
    assert Head.parse("--expect-head", f"7:0:{SHA}").seq == 0
    numbers = ("0:42", "7:-1", "7:042", "7")
    for wrong in ("", "7:42", f"7:42:{SHA[:-1]}", f"7:42:{SHA.upper()}", *(f"{number}:{SHA}" for number in numbers)):
        with pytest.raises(ConfigError, match=r"--expect-head .* is no head") as caught:
            Head.parse("--expect-head", wrong)
        assert caught.value.remedy == "`tandem describe GENERATION` shows it"


def test_the_longest_head_of_each_generation_is_kept() -> None:
    """Messages come in any order, and old ones stay on the topic."""
    known: dict[int, Head] = {}
    for number, seq in ((1, 5), (1, 3), (2, 1), (1, 9), (1, 4)):
        longest(known, Head(generation=number, seq=seq, sha256=SHA))
    assert {head.generation: head.seq for head in known.values()} == {1: 9, 2: 1}
    longest(known, Head(generation=1, seq=9, sha256=SHA[::-1]))
    assert known[1].sha256 == SHA, "of two that are as long the first one stays"


def test_a_store_that_has_the_entry_is_right_however_far_it_went_on(store: MemoryStore) -> None:
    """Of a head that somebody wrote down, nothing but its own number is asked."""
    it = backup(store)
    before = head_of(it.writer.state)
    claim = Head(generation=1, seq=0, sha256=head_of(ChainReader(store, PAIR).load(1, upto=0)).sha256)
    it.commit(records("orders", 0, range(12, 14)))
    reader = ChainReader(store, PAIR)
    reader.refresh()
    for head in (before, claim, head_of(it.writer.state)):
        reader.require(head)


def test_an_older_or_another_state_is_told(store: MemoryStore) -> None:
    """The entry is gone, or another one has its number, or the chain ends before it, or can't be read at all."""
    it = backup(store)
    head = head_of(it.writer.state)
    another = replace(head, sha256=SHA)
    reader = ChainReader(store, PAIR)
    with pytest.raises(RolledBackError, match="is another one than is known to have been written"):
        reader.require(another)
    store.delete([entry(3), entry(4)])
    reader.refresh()
    with pytest.raises(RolledBackError, match="is not in the chain any more"):
        reader.require(head)
    store.delete([entry(5)])
    with pytest.raises(RolledBackError, match="TDM-S003"):
        reader.require(head)
    found = missing_heads(reader, [head, replace(head, generation=9)])
    assert [(one.generation, one.fault) for one in found] == [(1, Mismatch.HEAD), (9, Mismatch.HEAD)]


def test_a_chain_that_cannot_be_read_holds_no_head(store: MemoryStore) -> None:
    """Its last entry may be there: what it says can't be told from what it was made to say."""
    head = head_of(backup(store).writer.state)
    store.objects[entry(2)] = b"{}"
    reader = ChainReader(store, PAIR)
    reader.refresh(tolerant=True)
    with pytest.raises(DamagedError, match="field v is missing"):
        reader.require(head)


def test_who_has_read_a_chain_does_not_take_an_older_one_for_it(store: MemoryStore) -> None:
    """A running instance looks from time to time; then the generation counts for nothing until the entry is back."""
    it = backup(store)
    backup(store, 2, "b")
    reader = ChainReader(store, PAIR)
    assert [state.number for state in reader.refresh(tolerant=True)] == [1, 2]
    newest = store.objects.pop(entry(it.writer.state.seq))
    seen = [[state.number for state in reader.refresh(tolerant=True)] for _ in range(60)]
    assert (seen[0], seen[-1]) == ([1, 2], [2])
    assert isinstance(reader.damaged[1], RolledBackError)
    for _ in range(70):  # looked at again, and still an older one
        reader.refresh(tolerant=True)
    assert 1 in reader.damaged
    store.objects[entry(it.writer.state.seq)] = newest
    for _ in range(60):
        back = reader.refresh(tolerant=True)
    assert [state.number for state in back] == [1, 2]


def test_a_chain_that_was_written_anew_is_another_one(store: MemoryStore) -> None:
    """The number is taken again, by an entry of another content: the hash tells, at whatever length."""
    it = backup(store)
    reader = ChainReader(store, PAIR)
    reader.refresh()
    store.delete([entry(5)])
    anew = Backup(store, it.writer, it.topics, positions=it.positions)
    anew.restart("x")
    anew.commit(records("orders", 0, range(12, 15)))
    for _ in range(60):
        reader.refresh(tolerant=True)
    assert 1 in reader.damaged


def head_details(state: Generation) -> dict[str, str]:
    """What a message with a head stores."""
    return dict(head_fields(Head.of(state))["details"])


def published(state: Generation, **fields: object) -> CoordinationMessage:
    """A heartbeat with a head."""
    found = message(instance="a", at=1, generation=state.number, chain_seq=state.seq, details=head_details(state))
    return replace(found, **fields)  # type: ignore[arg-type]  # the caller names fields


def test_messages_publish_heads_and_junk_is_none(store: MemoryStore) -> None:
    """The topic is open to whoever may write to it, and to older releases."""
    state = backup(store).writer.state
    assert heartbeat_in(published(state)).head == head_of(state)
    for wrong in (
        published(state, details={}),
        published(state, details={HEAD_SHA256: "no hash"}),
        published(state, generation=None),
        published(state, chain_seq=None),
        published(state, generation=0),
        published(state, chain_seq=-1),
    ):
        assert heartbeat_in(wrong).head is None


def test_heads_of_the_pair_are_remembered(store: MemoryStore) -> None:
    """Of the two instances alone, and the longest one, whatever is heard later."""
    state = backup(store).writer.state
    newest, older = published(state), published(state, chain_seq=2)
    context = PeerState(pair=newest.pair, instances=("a", "b"), incarnation="x")
    foreign = published(state, instance="somebody", chain_seq=99)
    for one in (newest, older, foreign):
        context.note_message(one, heard_mono=0.0)
    assert context.heads() == (head_of(state),)


def test_what_the_store_lacks_of_what_was_published(store: MemoryStore) -> None:
    """A later entry, another one, a generation that nobody claimed; of what can't be seen nothing is said."""
    state = backup(store).writer.state
    head = head_of(state)
    later, another, unknown = replace(head, seq=6), replace(head, sha256=SHA), replace(head, generation=2)
    assert heads.missing([head, replace(head, seq=3)], [state], numbers=[1]) == ()
    assert heads.missing([unknown, later], [state], numbers=[1]) == (later, unknown)
    assert heads.missing([another], [state], numbers=[1]) == (another,)
    assert heads.missing([unknown], [state], numbers=[1, 2]) == ()


def root_of(peers: PeerState, head: Head) -> str | None:
    """Under which root a head was published, as far as is known."""
    return peers.roots([head]).get(head.generation)


def test_what_was_published_under_another_root_names_both(store: MemoryStore) -> None:
    """Whoever says the root first or last; also once the new place is further on."""
    state = backup(store).writer.state
    head = head_of(state)
    old, new = (
        message_fields(Heartbeat(terms=agreement.PairTerms(root=root, origin=None, topics="t")))["details"]
        for root in ("s3://old/x", "s3://new/y")
    )
    heard = [
        published(state, event=CoordinationEvent.COMPLETE),
        published(state, details={**head_details(state), **old}),
    ]
    for messages in (heard, heard[::-1]):
        context = PeerState(pair=PAIR, instances=("a", "b"), incarnation="mine")
        for one in messages:
            context.note_message(one)
        assert (context.heads(), root_of(context, head)) == ((head,), "s3://old/x")
        assert root_of(context, replace(head, seq=head.seq - 1)) == "s3://old/x", "one that others followed"
        assert root_of(context, replace(head, seq=head.seq + 1)) is None
        assert context.roots([head, replace(head, generation=9)]) == {1: "s3://old/x"}
        # Another chain of that number, which is longer by now; what is missed is the head of before.
        for details in ({}, new):
            later = {"head_sha256": SHA, **details}
            context.note_message(published(state, chain_seq=99, details=later), heard_mono=1.0)
        assert context.heads() == (Head(generation=1, seq=99, sha256=SHA),)
        assert root_of(context, context.heads()[0]) == "s3://new/y"
        assert root_of(context, head) == root_of(context, replace(head, seq=head.seq - 1)) == "s3://old/x"
        assert root_of(context, replace(head, seq=98)) == "s3://new/y"


def test_a_root_that_was_changed_for_both_is_told(store: MemoryStore) -> None:
    """With both roots and the two ways out. A head of this root, or of one that nobody named, is one put back."""
    head = head_of(backup(store).writer.state)
    seen = replace(sight(MemoryStore(), heard_s={"a": 1.0, "b": 1.0}), lost_heads=(head,))
    [problem] = [
        one for one in overview(replace(seen, published_under={1: "s3://old"})).problems if "s3://old" in str(one)
    ]
    assert problem.fault is Fault.ROLLED_BACK
    assert problem.message == (
        "entry 5 of generation 1 was published by who stored under s3://old, and is not under memory:///: store.root "
        "was changed"
    )
    assert "set store.root back" in str(problem.remedy)
    assert "delete the coordination topic" in str(problem.remedy)
    for under in ({}, {1: seen.root}, {2: "s3://old"}):
        [other] = [one for one in overview(replace(seen, published_under=under)).problems if one.fault is problem.fault]
        assert "the bucket is in an older state, or it is another one" in other.message


def test_what_a_heartbeat_says_of_lost_heads() -> None:
    """Nothing without any; roots that are not this one, once each, a few at most."""
    lost = [Head(generation=number, seq=5, sha256=SHA) for number in (1, 2)]
    said = "entries that are known to have been written are not in the store: 5 of generation 1, 5 of generation 2"
    assert heads.summary([], ["s3://x"]) is None
    assert heads.summary(lost, []) == said
    roots = ["s3://b", "s3://a", "s3://b", "s3://d", "s3://c"]
    assert heads.summary(lost, roots) == (
        f"{said}; they were published by who stored under s3://a, s3://b, s3://c and 1 more"
    )


def test_status_names_a_bucket_that_was_put_back(store: MemoryStore) -> None:
    """Worst first, after what can't be read at all."""
    head = head_of(backup(store).writer.state)
    seen = replace(sight(store, heard_s={"a": 1.0, "b": 1.0}), lost_heads=(replace(head, seq=9),))
    problem = overview(seen).problems[0]
    assert problem.fault is Fault.ROLLED_BACK
    assert "entry 9 of generation 1 was published and is not in the store" in problem.message


def signed(folder: Path) -> tuple[str, StoreAccess]:
    """A root and settings that sign and require it."""
    signer = Signer.generate()
    (folder / "key.pem").write_bytes(signer.pem())
    (folder / "store").mkdir()
    return (folder / "store").as_uri(), StoreAccess(
        signing_key_file=str(folder / "key.pem"), trusted_keys=signer.public, require_signatures=True
    )


def test_a_restore_does_not_fall_back_from_what_is_forged(tmp_path: Path) -> None:
    """From a damaged generation it takes an older one with a warning; who forges wants just that."""
    root, settings = signed(tmp_path)
    store = open_store(root, settings)
    backup(store)
    second = backup(store, 2, "b")
    (tmp_path / "store" / entry(second.writer.state.seq + 1, 2)).write_text('{"v":1}')
    with pytest.raises(SignatureError, match=r"generation 2: .* is not signed.*to take another generation"):
        find_state(ChainReader(store, PAIR), StateRequest())
    found = find_state(ChainReader(store, PAIR), StateRequest(generation=1))
    assert [state.number for state in found.generations] == [1]
    assert "is not signed" in found.damaged[2]


def test_a_release_and_a_pause_that_nobody_signed_move_nothing(tmp_path: Path) -> None:
    """A forged release would let go of the last copy of a deleted topic."""
    from tandem.backup_avro.documents.pause import Pause, encode_pause  # noqa: PLC0415 - for this test alone
    from tandem.backup_avro.documents.release import Release, encode_release  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain.pauses import PauseReader  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain.releases import ReleaseReader  # noqa: PLC0415 - likewise

    root, settings = signed(tmp_path)
    plain, store = open_store(root), open_store(root, settings)
    release = Release(
        number=1, pair=PAIR, topic="t", topic_id="i", partitions=None, through=9, at=1, by="me", reason=""
    )
    plain.put_if_absent(layout.release_key(PAIR, 1), encode_release(release))
    plain.put_if_absent(
        layout.pause_key(PAIR, 1), encode_pause(Pause(number=1, pair=PAIR, at=1, until=2, by="me", reason=""))
    )
    assert ReleaseReader(plain, PAIR).refresh() == (release,)
    assert ReleaseReader(store, PAIR).refresh() == ()
    own = ReleaseReader(store, PAIR).append(replace(release, reason="again"))
    assert own.number == 2
    assert ReleaseReader(store, PAIR).refresh(tolerant=True) == (own,)
    assert PauseReader(store, PAIR).refresh() is None


# --- the command line ---


def test_keys_are_made_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The private one goes to a new file for its owner alone, the public one to stdout, and nothing more."""
    path = tmp_path / "a.pem"
    assert run(["signing-key", "generate", str(path), "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.of_pem(path.read_bytes(), "it").public == made["public"]
    assert run(["signing-key", "show", str(path)]) == 0
    assert capsys.readouterr().out.split() == [made["public"], "#", made["id"]]
    assert run(["signing-key", "generate", str(path)]) == 2
    assert "exists" in capsys.readouterr().err
    assert run(["signing-key", "generate", str(tmp_path / "none" / "a.pem")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert run(["signing-key", "show", str(tmp_path / "none.pem")]) == 2
    assert "none.pem: No such file" in capsys.readouterr().err


def config(folder: Path, root: str, signing: str) -> str:
    path = folder / "a.yaml"
    path.write_text(
        f"pair: {PAIR}\ntopics: {{include: [orders]}}\nkafka: {{bootstrap.servers: '127.0.0.1:1'}}\n"
        f"store: {{root: '{root}'}}\nsigning: {signing}\n"
    )
    return str(path)


def test_the_configuration_says_who_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inline and in a file, with comments; `describe` shows the head of what they have signed, and refuses the rest."""
    monkeypatch.delenv("TANDEM_CONFIG", raising=False)
    root, settings = signed(tmp_path)
    head = head_of(backup(open_store(root, settings)).writer.state)
    (tmp_path / "trusted").write_text(f"# who writes\n\n{settings.trusted_keys}  # a\n")
    file = config(tmp_path, root, f"{{trusted_file: {tmp_path}/trusted, require: true}}")
    assert run(["describe", "1", "-c", file]) == 0
    assert f"head       {head}" in capsys.readouterr().out
    assert run(["signing-key", "show", "-c", file]) == 2
    assert "[TDM-N020]" in capsys.readouterr().err
    assert run(["signing-key", "generate", str(tmp_path / "own.pem"), "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    own = config(tmp_path, root, f"{{key_file: {tmp_path}/own.pem}}")
    assert run(["signing-key", "show", "-c", own, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == made
    other = Signer.generate().public
    assert run(["describe", "1", "-c", config(tmp_path, root, f"{{trusted: ['{other}'], require: true}}")]) == 3
    assert "which signing.trusted does not hold" in capsys.readouterr().err
    file = config(tmp_path, root, f"{{trusted_file: {tmp_path}/trusted, require: true}}")
    for content, said in (("nonsense", "trusted:1: 'nonsense' is no public key"), ("# nobody", "no public key, and")):
        (tmp_path / "trusted").write_text(content)
        assert run(["describe", "1", "-c", file]) == 2
        assert said in capsys.readouterr().err
    assert run(["describe", "1", "-c", config(tmp_path, root, "{trusted_file: /none/trusted}")]) == 2
    assert "signing.trusted_file: /none/trusted: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signing", "said"),
    [
        ("{require: true}", "a.yaml:5: signing.require: nobody is trusted"),
        ("{key_file: /a, key_env: B}", "signing.key_env: signing.key_file is set as well"),
        ("{trusted: [AAAA]}", "is not a public key"),
        ("{trustd: []}", "unknown key; did you mean"),
    ],
)
def test_wrong_signing_settings_are_told_with_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], signing: str, said: str
) -> None:
    """Before anything is opened."""
    assert run(["config", "validate", "-c", config(tmp_path, tmp_path.as_uri(), signing)]) == 2
    assert said in capsys.readouterr().err


def test_verify_says_what_goes_with_its_new_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody trusted, no head, and a comparison of keys that reads no chain's end."""
    monkeypatch.delenv("TANDEM_CONFIG", raising=False)
    file = config(tmp_path, tmp_path.as_uri(), "{}")
    for options, said in (
        (["--require-signature"], "--require-signature: no key is trusted"),
        (["--expect-head", "7"], "--expect-head '7' is no head"),
        (["--against-topic", "--expect-head", f"1:1:{SHA}"], "--expect-head requires a verification that reads chains"),
        (["--layout", "connector", "--require-signature"], "--require-signature"),
    ):
        assert run(["verify", "-c", file, *options]) == 2
        assert said in capsys.readouterr().err


def test_the_data_source_takes_trust_as_options(tmp_path: Path) -> None:
    """What a notebook reads is as sure as what a command restores, and the options say so again to every task."""
    root, settings = signed(tmp_path)
    backup(open_store(root, settings))
    options = {"root": root, "pair": PAIR, "store.require_signatures": "true"}
    trusting = parse_options({**options, "store.trusted_keys": str(settings.trusted_keys)})
    reader = trusting.reader()
    assert isinstance(reader, ChainReader)
    assert [state.number for state in reader.refresh()] == [1]
    assert store_options(trusting.address.settings) == {
        "store.trusted_keys": str(settings.trusted_keys),
        "store.require_signatures": "true",
    }
    other = parse_options({**options, "store.trusted_keys": Signer.generate().public}).reader()
    assert isinstance(other, ChainReader)
    with pytest.raises(SignatureError, match="TDM-A036"):
        other.refresh()


# --- what an instance remembers ---------------------------------------------------------------------------------------


def test_a_head_is_lost_if_a_later_look_does_not_find_it(store: MemoryStore) -> None:
    """A look that began before it was published could not, and those of a peer at work are always a bit ahead."""
    state = backup(store).writer.state
    here = head_of(state)
    watched = heads.LostHeads()

    def look(*known: Head, began: float, now: float) -> tuple[Head, ...]:
        return watched.find_lost(known, [state], numbers=[1], began=began, now=now)

    for tick in range(5):  # the peer goes on, and this one reads on behind it
        ahead = replace(here, seq=state.seq + 1, sha256=f"{tick:064x}")
        assert look(ahead, began=tick - 0.5, now=tick) == ()
        assert not watched.settled
        state = replace(state, seq=ahead.seq, head_sha256=ahead.sha256)
    assert look(head_of(state), began=5, now=5.5) == ()
    assert (watched.settled, watched.lost) == (True, ())
    gone = replace(here, seq=state.seq + 1, sha256=SHA)
    assert look(gone, began=5.6, now=6) == ()
    assert look(gone, began=6, now=7) == ()
    assert look(gone, began=6.5, now=7) == (gone,)
    state = replace(state, seq=gone.seq + 1)
    assert look(gone, replace(gone, seq=gone.seq + 9), began=8, now=8) == ()
    assert (watched.settled, watched.lost) == (True, (gone,))


@pytest.mark.parametrize("generations", [1, 2 * HEADS])
def test_forged_heads_fill_no_memory_and_hold_nothing_up(store: MemoryStore, generations: int) -> None:
    """Each message may name another one, of one generation or of any; an instance must come to its first decision."""
    state = backup(store).writer.state
    watched = heads.LostHeads()
    told = 0
    for tick in range(3 * HEADS):
        known = [
            Head(generation=1 + number % generations, seq=1000 + tick, sha256=SHA) for number in range(tick, tick + 3)
        ]
        told += len(watched.find_lost(known, [state], numbers=[1], began=tick - 0.5, now=tick))
    assert watched.settled
    assert told == len(watched.lost) == min(generations, HEADS)
