"""Reading slices from a real store: checksum first, then exactly the asked offsets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.backups.build_backup import PAIR, Backup, TopicSpec, records

from tandem.backup_avro.errors import DamagedError, TandemError
from tandem.backup_avro.record.container import Codec, encode_header
from tandem.backup_avro.record.current import decode_body
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.sink.store import ObjectStore, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.object_reader import MissingObjectError, ObjectReader
from tandem.spark_jobs.spark import session
from tandem.spark_jobs.spark.session import from_spark


def slices(store: ObjectStore) -> list[Slice]:
    """All parts of generation 1, whole."""
    state = ChainReader(store, PAIR).load(1)
    return [
        Slice(generation=1, opening=state.opening, item=item, part=part, low=part.first, high=part.last + 1)
        for item, part in state.live_parts()
    ]


def offsets(store: ObjectStore, piece: Slice, **how: Any) -> list[int]:
    """The offsets that a slice yields; each body's claims are checked on the way."""
    found = []
    for body in ObjectReader(store).bodies(piece, **how):
        decoded = list(decode_body(body.body, body.records))
        assert decoded[0].offset == body.first
        found += [record.offset for record in decoded]
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    held=st.lists(st.integers(0, 60), unique=True, min_size=1, max_size=30).map(sorted),
    low=st.integers(-2, 64),
    length=st.integers(0, 64),
    block_records=st.integers(1, 7),
    codec=st.sampled_from(Codec),
)
def test_a_slice_yields_exactly_its_offsets(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    held: list[int],
    low: int,
    length: int,
    block_records: int,
    codec: Codec,
) -> None:
    """Wherever the borders fall in blocks and gaps, neither less nor more comes out."""
    store = open_store(tmp_path_factory.mktemp("slice").as_uri())
    backup = Backup.claim(store, topics=[TopicSpec("orders", 2)], block_records=block_records, codec=codec)
    backup.commit(records("orders", 0, held) + records("orders", 1, range(5)), journal=True)
    piece = next(piece for piece in slices(store) if piece.part.key.partition == 0)
    high = low + length
    wanted = [offset for offset in held if low <= offset < high]
    piece = replace(piece, low=low, high=high)
    assert offsets(store, piece) == wanted
    assert [offset for number in range(3) for offset in offsets(store, piece, share=(number, 3))] == wanted
    backwards = [body.first for body in ObjectReader(store).bodies(piece, newest_first=True)]
    assert backwards == [body.first for body in ObjectReader(store).bodies(piece)][::-1]
    assert sorted(offsets(store, piece, newest_first=True)) == wanted
    whole = list(ObjectReader(store).bodies(piece))
    assert list(ObjectReader(store, apart=True).bodies(piece)) == whole


def damage(path: Path, change: str) -> None:
    """Change a stored object behind the store's back."""
    data = bytearray(path.read_bytes())
    if change == "flip":
        data[len(data) // 2] ^= 1
    elif change == "cut":
        del data[-1]
    elif change == "grow":
        data += b"\0"
    path.unlink()
    if change != "remove":
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "message"), [("flip", "SHA-256"), ("cut", "bytes"), ("grow", "bytes"), ("remove", "not in the store")]
)
def test_a_changed_object_is_refused_before_it_is_decoded(
    store: ObjectStore, tmp_path: Path, change: str, message: str
) -> None:
    """One bit, one byte or all of it: the message names the object and what is wrong."""
    Backup.begun(store, records("orders", 0, range(20)))
    (piece,) = slices(store)
    damage(tmp_path / "store" / piece.item.key, change)
    with pytest.raises(DamagedError, match=message) as caught:
        next(ObjectReader(store).bodies(piece))
    assert piece.item.key in str(caught.value)
    assert isinstance(caught.value, MissingObjectError) == (change == "remove")


def test_slices_of_one_object_fetch_it_once(store: ObjectStore, tmp_path: Path) -> None:
    """A journal's second slice comes from memory: it is still there after the file is gone."""
    backup = Backup.claim(store, topics=[TopicSpec("orders", 2)])
    backup.commit(records("orders", 0, range(5)) + records("orders", 1, range(5)), journal=True)
    first, second = slices(store)
    reader = ObjectReader(store)
    assert [body.first for body in reader.bodies(first)] == [0, 4]
    (tmp_path / "store" / first.item.key).unlink()
    assert [body.first for body in reader.bodies(second)] == [0, 4]


def test_a_part_of_a_journal_can_be_read_alone(store: ObjectStore, tmp_path: Path) -> None:
    """What else is in the journal is not fetched; damage there is none of its business, its own is found."""
    backup = Backup.claim(store, topics=[TopicSpec("orders", 2)])
    backup.commit(records("orders", 0, range(9)) + records("orders", 1, range(5)), journal=True)
    first, second = slices(store)
    path = tmp_path / "store" / first.item.key
    data = bytearray(path.read_bytes())
    data[second.part.start + 5] ^= 1
    path.unlink()
    path.write_bytes(data)
    reader = ObjectReader(store, apart=True)
    assert [body.first for body in reader.bodies(replace(first, low=2, high=6))] == [2, 4]
    with pytest.raises(DamagedError, match=rf"bytes {second.part.start} to {second.part.end} are not what the chain"):
        list(reader.bodies(second))
    with pytest.raises(DamagedError, match="TDM-P063"):
        list(ObjectReader(store).bodies(first))
    path.unlink()
    with pytest.raises(MissingObjectError):
        list(reader.bodies(first))


@pytest.mark.parametrize("lie", list(Codec))
def test_what_the_header_of_a_journal_says_is_not_believed(store: ObjectStore, tmp_path: Path, lie: Codec) -> None:
    """Nothing vouches for it where parts are read one by one: codec and sync marker are those of the OPEN entry."""
    backup = Backup.claim(store, topics=[TopicSpec("orders", 2)], codec=Codec.NULL)
    backup.commit(records("orders", 0, range(9)) + records("orders", 1, range(5)), journal=True)
    first, _ = slices(store)
    path = tmp_path / "store" / first.item.key
    data = path.read_bytes()
    header = encode_header(codec=lie, sync=bytes(16))
    start = min(part.start for part in first.item.parts)
    path.unlink()
    path.write_bytes(header[:start].ljust(start, b"x") + data[start:])
    assert [body.first for body in ObjectReader(store, apart=True).bodies(first)] == [0, 4, 8]
    with pytest.raises(DamagedError, match="TDM-P063"):
        list(ObjectReader(store).bodies(first))


def test_a_codec_that_is_none_of_ours_is_damage(store: ObjectStore) -> None:
    """As an OPEN entry may name one."""
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    backup.commit(records("orders", 0, range(9)), journal=True)
    (piece,) = slices(store)
    assert piece.opening is not None
    strange = replace(piece, opening=replace(piece.opening, codec="lzma"))
    with pytest.raises(DamagedError, match="its generation's OPEN names the codec lzma"):
        list(ObjectReader(store, apart=True).bodies(strange))


def test_memory_for_fetched_objects_is_bounded(store: ObjectStore, tmp_path: Path) -> None:
    """With no room for two objects the older one is fetched again."""
    backup = Backup.begun(store, records("orders", 0, range(5)))
    backup.commit(records("orders", 0, range(5, 10)))
    first, second = slices(store)
    reader = ObjectReader(store, cache_bytes=first.item.bytes + 1)
    list(reader.bodies(first))
    list(reader.bodies(second))
    (tmp_path / "store" / first.item.key).unlink()
    with pytest.raises(MissingObjectError):
        list(reader.bodies(first))


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            (
                "Traceback:\n  line 1, in f\n"
                "tandem.spark_jobs.reading.object_reader.MissingObjectError: a/b is in the chain (plan again)\n"
            ),
            "MissingObjectError",
            "a/b is in the chain (plan again)",
        ),
        ("Traceback\nValueError: 3 is odd\n", "PermanentError", "ValueError: 3 is odd"),
        ("Job aborted: out of space\n\tat a.b.C", "PermanentError", "Job aborted: out of space"),
        ("", "PermanentError", "a Spark job failed"),
        (
            (
                "An error occurred while calling z:a.b.\n: a.SparkException: Job aborted due to stage failure: "
                "Lost task 0.0: a.SparkException: Python worker exited unexpectedly (crashed). Consider\n\tat a.b.C"
            ),
            "PermanentError",
            "lost a Python worker, again and again: killed, for want of memory perhaps, or crashed (give",
        ),
        ("Lost task 0.3: ExecutorLostFailure (executor 1 exited)\n", "PermanentError", "lost an executor"),
        ("Traceback:\n  line 1, in f\nMemoryError\n", "PermanentError", "lost the memory for a task"),
        (
            (
                "An error occurred while calling z:a.b.\n: org.a.SparkException: Job aborted due to stage failure: "
                'Lost task 0.3 (TID 3): java.io.IOException: Cannot run program "python9": error=2, No such file\n'
                "Caused by: java.io.IOException: error=2, No such file\n"
            ),
            "PermanentError",
            'Lost task 0.3 (TID 3): java.io.IOException: Cannot run program "python9": error=2, No such file (run',
        ),
        (
            (
                "An error occurred while calling None.a.SparkSession.\n: java.lang.IllegalStateException: Cannot call "
                "methods on a stopped SparkContext.\nThis stopped SparkContext was created at:\n\tat a.b.C\n"
            ),
            "PermanentError",
            "Spark's cluster has ended the application (Spark's own lines above say why.",
        ),
        (
            "Lost task 0.3 (TID 3): a.PythonException: Traceback:\nModuleNotFoundError: No module named 'tandem'\n",
            "ConfigError",
            "Spark's Python workers lack the module tandem (install tandem-kafka-backup[spark] in the Python of the",
        ),
        (
            "While calling z:a.b.\n: a.b.SparkException: Job 0 cancelled because SparkContext was shut down",
            "PermanentError",
            "Spark's cluster has ended the application",
        ),
    ],
)
def test_errors_of_tasks_come_back_as_they_were_raised(text: str, kind: str, message: str) -> None:
    """The driver's error has the class and message of the task's, so the exit code is right."""
    error = from_spark(text)
    assert isinstance(error, TandemError)
    assert type(error).__name__ == kind
    assert message in str(error)
    assert error.code in {"TDM-P072", "TDM-P073", "TDM-P084", "TDM-P085", "TDM-P061"}


def test_the_code_of_a_task_comes_back() -> None:
    """It is the note below the error's line; that of an error before it, in a chain of causes, is another's."""
    raised = "tandem.backup_avro.errors.DamagedError: a is damaged (look)\n"
    cause = "ValueError: b\nerror code: TDM-X002\n\nThe above exception was the direct cause\n"
    assert from_spark(f"{cause}{raised}error code: TDM-X001\n\n\tat a.b.C\n").code == "TDM-X001"
    assert from_spark(f"{cause}{raised}\n\tat a.b.C\n").code == "TDM-P061"


def test_what_sessions_are_given() -> None:
    """No second copies of tasks, which write, anywhere; on one machine nothing listens to others."""
    everywhere, here = session.settings("k8s://https://kubernetes"), session.settings("local[2,4]")
    assert everywhere["spark.speculation"] == "false"
    assert everywhere.items() < here.items()
    assert here["spark.driver.bindAddress"] == "127.0.0.1"
