"""Signed documents: their bytes, whom to believe, and every way in which one that is not right is refused."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.backup_avro.chain import layout, signatures
from tandem.backup_avro.chain.json_codec import decode_claim, decode_entry, pack
from tandem.backup_avro.chain.signatures import SignatureError, Signer, Trust, unseal
from tandem.backup_avro.errors import ConfigError, NewerFormatError
from tandem.sink.store import ObjectMissingError, PutResult, StoreAccess, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.signed_store import load_signer

GOLDEN = Path(__file__).parents[3] / "golden" / "chain-signed"
#: Of the golden chain. It signs nothing else.
PUBLIC = (GOLDEN / "public.txt").read_text().strip()
KEY = "airports/generations/00000007/00000000000000000003.json"
SMALL = b'{"_sum":"0123456789abcdef","enc":null,"v":1}'
LARGE = pack(b'{"v":1,"x":"' + b"y" * 10_000 + b'"}')
OWNER = Signer.generate()
STRANGER = Signer.generate()
BODIES = pytest.mark.parametrize("body", [SMALL, LARGE], ids=["json", "gzip"])


def trust(*signers: Signer, require: bool = True) -> Trust:
    return Trust.of([signer.public for signer in signers], require=require)


@BODIES
def test_a_signed_document_is_the_document_and_always_the_same_bytes(body: bytes) -> None:
    """What is taken off again leaves every byte, and signing twice gives the same, so a put can be tried again."""
    sealed = OWNER.seal(KEY, body)
    assert sealed == OWNER.seal(KEY, body) != body
    assert unseal(sealed)[0] == body
    assert trust(OWNER).open(KEY, sealed) == body
    assert trust(STRANGER, OWNER).open(KEY, sealed) == body


def test_people_and_their_tools_can_read_signed_documents() -> None:
    """A small one is JSON with one more field, a large one unpacks with gunzip."""
    assert json.loads(OWNER.seal(KEY, SMALL)) == {
        **json.loads(SMALL),
        "_sig": unseal(OWNER.seal(KEY, SMALL))[1].decode(),
    }
    assert gzip.decompress(OWNER.seal(KEY, LARGE)) == gzip.decompress(LARGE)


@BODIES
def test_a_document_at_another_place_is_refused(body: bytes) -> None:
    """Entry 3 of generation 7 is neither entry 4, nor of generation 8, nor of another pair."""
    sealed = OWNER.seal(KEY, body)
    for place in (KEY.replace("003.json", "004.json"), KEY.replace("0007", "0008"), "b" + KEY):
        with pytest.raises(SignatureError, match="TDM-A037"):
            trust(OWNER).open(place, sealed)


@BODIES
def test_unsigned_and_foreign_ones_count_only_where_signatures_are_not_required(body: bytes) -> None:
    """The time until all writers sign: what is not signed, or by somebody else, is taken as ever."""
    with pytest.raises(SignatureError, match="TDM-A035") as caught:
        trust(OWNER).open(KEY, body)
    assert caught.value.remedy == (
        "it was forged, or written before signing was switched on; if so, set signing.require: false until the pair "
        "has taken a turn and what is older is cleared"
    )
    with pytest.raises(
        SignatureError, match=f"signed with the key {STRANGER.id}, which signing.trusted does not hold"
    ) as foreign:
        trust(OWNER).open(KEY, STRANGER.seal(KEY, body))
    assert foreign.value.remedy == (
        "if it is the key of a writer of yours, add its public key; else the object was forged"
    )
    lenient = trust(OWNER, require=False)
    assert lenient.open(KEY, body) == lenient.open(KEY, STRANGER.seal(KEY, body)) == body
    assert Trust().open(KEY, OWNER.seal(KEY, body)) == body


@pytest.mark.parametrize("require", [True, False])
def test_a_wrong_signature_of_somebody_trusted_is_refused_in_any_case(require: bool) -> None:
    """Who strips a signature is let pass without `require`; who leaves one that does not fit is not."""
    forged = OWNER.seal(KEY, SMALL).replace(b'"v":1', b'"v":2')
    with pytest.raises(SignatureError, match="TDM-A037") as caught:
        trust(OWNER, require=require).open(KEY, forged)
    assert caught.value.remedy == (
        "it was changed, or moved here from elsewhere: bring the object back from the bucket's versions or a replica, "
        "and find the process that writes to the bucket"
    )


@BODIES
def test_no_byte_can_be_changed(body: bytes) -> None:
    """Each single bit, of document and signature, and every cut."""
    sealed = OWNER.seal(KEY, body)
    believing = trust(OWNER)
    for at in range(len(sealed)):
        with pytest.raises(SignatureError):
            believing.open(KEY, sealed[:at] + bytes([sealed[at] ^ 1 << at % 8]) + sealed[at + 1 :])
    for end in range(len(sealed)):
        with pytest.raises(SignatureError):
            believing.open(KEY, sealed[:end])


def test_one_signature_has_one_spelling() -> None:
    """The last letter of its base64 has bits to spare: they must be as they were written."""
    sealed = OWNER.seal(KEY, SMALL)
    token = unseal(sealed)[1]
    assert token is not None
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = alphabet[alphabet.index(token[-1:]) ^ 1 :][:1]
    with pytest.raises(SignatureError, match="TDM-A037"):
        trust(OWNER).open(KEY, sealed.replace(token, token[:-1] + other))


@given(
    st.binary(max_size=300)
    | st.binary(max_size=60).map(lambda data: b'{"_sig":"' + data)
    | st.binary(max_size=60).map(lambda data: b"\x1f\x8b\x08\x04" + data)
)
def test_any_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    """Whoever can write to the bucket can put anything there."""
    with pytest.raises(SignatureError):
        trust(OWNER).open(KEY, data)
    Trust().open(KEY, data)


@pytest.mark.parametrize("extra", [b"", b"T", b"TS", b"TS\1", b"TS\1\0"])
def test_an_extra_field_too_short_for_a_signature_is_none(extra: bytes) -> None:
    """Its header alone has four bytes."""
    data = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff" + struct.pack("<H", len(extra)) + extra + b"rest"
    assert unseal(data) == (data, None)
    assert Trust().open(KEY, data) == data
    with pytest.raises(SignatureError, match="TDM-A035"):
        trust(OWNER).open(KEY, data)


def test_how_long_a_signature_may_be() -> None:
    """What goes on for longer in JSON is none; the extra field of a gzip member says how long it is."""
    for length, signed in ((998, True), (999, False)):
        data = b'{"_sig":"' + b"x" * length + b'","v":1}'
        assert unseal(data) == ((b'{"v":1}', b"x" * length) if signed else (data, None))
    token = b"x" * 65_531
    extra = b"TS" + struct.pack("<H", len(token)) + token
    data = LARGE[:3] + b"\x04" + LARGE[4:10] + struct.pack("<H", len(extra)) + extra + LARGE[10:]
    assert unseal(data) == (LARGE, token)


def test_a_signature_of_a_later_form_is_not_believed() -> None:
    """Nobody here can judge it; what it is on is read where signatures are not required."""
    later = b'{"_sig":"2.something",' + SMALL[1:]
    with pytest.raises(SignatureError, match="is signed in an unknown form"):
        trust(OWNER).open(KEY, later)
    assert trust(OWNER, require=False).open(KEY, later) == SMALL


def test_readers_without_signatures_fail_at_the_claim_and_say_what_helps() -> None:
    """As the release before this one reads a signed chain: the first thing of it is no damage, but newer."""
    with pytest.raises(NewerFormatError, match=r"unknown field _sig .use a newer release"):
        decode_claim((GOLDEN / "claim.json").read_bytes(), "claim")
    with pytest.raises(NewerFormatError, match="unknown field _sig"):
        decode_entry((GOLDEN / "00000000000000000001.json").read_bytes(), "entry")


def golden(folder: Path) -> Path:
    """A root that holds the golden chain."""
    chain = folder / layout.chain_prefix("airports", 7)
    chain.mkdir(parents=True)
    (folder / layout.claim_key("airports", 7)).write_bytes((GOLDEN / "claim.json").read_bytes())
    for path in GOLDEN.glob("0*.json"):
        (chain / path.name).write_bytes(path.read_bytes())
    return folder


def test_the_golden_chain_stays_readable(tmp_path: Path) -> None:
    """A small entry, a large one and a SNAPSHOT, as they were written by this release, with and without its key."""
    root = golden(tmp_path).as_uri()
    strict = ChainReader(open_store(root, StoreAccess(trusted_keys=PUBLIC, require_signatures=True)), "airports")
    state = strict.load(7)
    assert (state.seq, state.complete) == (6, True)
    assert ChainReader(open_store(root), "airports").load(7).head_sha256 == state.head_sha256
    assert any((GOLDEN / f"{seq:020d}.json").read_bytes()[:2] == b"\x1f\x8b" for seq in range(1, 7))
    others = StoreAccess(trusted_keys=STRANGER.public, require_signatures=True)
    with pytest.raises(SignatureError, match="TDM-A036"):
        ChainReader(open_store(root, others), "airports").load(7)


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        ("p/generations/00000001.json", True),
        (KEY, True),
        ("p/releases/00000001.json", True),
        ("p/pauses/00000001.json", True),
        ("p/checkpoints/daily.json", True),
        ("p/checkpoints/outcomes/00.json", True),
        ("p/a/generation=00000001/offers/x.json", True),
        ("p/a/generation=00000001/topics/t/partition=0/t+0+1+2+3.avro", False),
        ("p/a/generation=00000001/journal/1+2.avro", False),
        ("p/pins/x.json", False),
        ("p/restores/x/report.json", False),
        ("p/restores/targets/x.json", True),
        ("p/results/verify-1.json", False),
    ],
)
def test_what_is_signed(key: str, signed: bool) -> None:
    """All that decisions rest on; data objects are named by hash, the rest is for people or does not matter."""
    assert layout.is_signed(key) is signed


def pem(folder: Path, signer: Signer = OWNER) -> str:
    """A private key in a file."""
    path = folder / "key.pem"
    path.write_bytes(signer.pem())
    return str(path)


def test_a_store_signs_what_is_put_and_checks_what_is_got(tmp_path: Path) -> None:
    """Data objects and pins pass as they are; ranges of a document are those of what was put."""
    root = (tmp_path / "store").as_uri()
    (tmp_path / "store").mkdir()
    settings = StoreAccess(signing_key_file=pem(tmp_path), trusted_keys=OWNER.public, require_signatures=True)
    store, plain = open_store(root, settings), open_store(root, StoreAccess())
    assert store.put_if_absent(KEY, SMALL) is PutResult.CREATED
    assert store.put_if_absent(KEY, SMALL) is PutResult.EXISTS
    assert store.get(KEY) == plain.get(KEY) == SMALL
    assert (store.get(KEY, start=2, end=6), store.get(KEY, start=-0, end=None)) == (SMALL[2:6], SMALL)
    assert (tmp_path / "store" / KEY).read_bytes() == OWNER.seal(KEY, SMALL)
    store.put_if_absent("airports/pins/x.json", SMALL)
    assert (tmp_path / "store" / "airports/pins/x.json").read_bytes() == SMALL
    plain.put_if_absent(KEY.replace("003", "004"), SMALL)
    with pytest.raises(SignatureError, match="TDM-A035"):
        store.get(KEY.replace("003", "004"))
    with pytest.raises(ObjectMissingError):
        store.get(KEY.replace("003", "005"))


def test_who_has_no_key_writes_nothing_where_signatures_are_required(tmp_path: Path) -> None:
    """It would be damage at once. Readers need no key."""
    store = open_store(tmp_path.as_uri(), StoreAccess(trusted_keys=OWNER.public, require_signatures=True))
    with pytest.raises(ConfigError, match=r"would not be signed.*signing.key_file"):
        store.put_if_absent(KEY, SMALL)
    with pytest.raises(ConfigError, match="airports/ would not be signed"):  # an instance asks when it starts
        store.probe("airports/")
    assert not list(tmp_path.iterdir())


def test_a_key_that_nobody_trusts_signs_nothing(tmp_path: Path) -> None:
    """A peer would take all of it for forged; said before anything is written, at the latest by the probe."""
    store = open_store(tmp_path.as_uri(), StoreAccess(signing_key_file=pem(tmp_path), trusted_keys=STRANGER.public))
    with pytest.raises(ConfigError, match=f"{OWNER.id} is not among signing.trusted"):
        store.probe("airports/")
    with pytest.raises(ConfigError, match=f"add {OWNER.public}".replace("+", r"\+")):
        store.put_if_absent(KEY, SMALL)


def test_the_private_key_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is wrong with it is said without a word of it."""
    found = load_signer(StoreAccess(signing_key_file=pem(tmp_path)))
    monkeypatch.setenv("BACKUP_KEY", OWNER.pem().decode())
    other = load_signer(StoreAccess(signing_key_env="BACKUP_KEY"))
    assert found is not None
    assert other is not None
    assert found.public == other.public == OWNER.public
    assert "PRIVATE" not in repr(found)
    assert load_signer(StoreAccess()) is None
    (tmp_path / "wrong.pem").write_text("my secret")
    for settings, said in (
        (StoreAccess(signing_key_file=str(tmp_path / "none.pem")), "none.pem: No such file"),
        (StoreAccess(signing_key_file=f"{tmp_path}/\0"), "it can't be read"),
        (StoreAccess(signing_key_file=str(tmp_path / "wrong.pem")), "wrong.pem: no Ed25519 private key in PEM"),
        (StoreAccess(signing_key_env="NOT_THERE"), "NOT_THERE is not set"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_signer(settings)
        assert said in str(caught.value)
        assert "my secret" not in str(caught.value)


def test_other_kinds_of_keys_are_refused() -> None:
    """An RSA or EC key in PEM is none of ours; nor is a text, or bytes of another length, a public one."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - for this test alone
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - likewise

    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for wrong in (other, b"no key at all"):
        with pytest.raises(ConfigError, match=r"^here: no Ed25519 private key") as caught:
            Signer.of_pem(wrong, "here")
        assert caught.value.remedy == "`tandem signing-key generate FILE` makes one"
    for text in ("AAAA", "not base64!", "", f"{OWNER.public[:7]}!{OWNER.public[7:]}", "long" * 40):
        with pytest.raises(ConfigError) as caught:
            Trust.of([text], require=True)
        assert str(caught.value) == (
            f"{text[:60]!r} is no public key: base64 of 32 bytes was expected "
            "(`tandem signing-key show` prints the one that belongs to a private key)"
        )
    assert Trust.of([f" {OWNER.public}\n"], require=True).keys.keys() == {OWNER.id}
    assert signatures.key_id(OWNER.public) == OWNER.id


def test_settings_that_make_no_sense() -> None:
    """Two keys at once, or `require` without anybody to believe."""
    with pytest.raises(ConfigError, match="TDM-S097"):
        StoreAccess(signing_key_file="a", signing_key_env="B")
    with pytest.raises(ConfigError, match="TDM-S098"):
        StoreAccess(require_signatures=True, trusted_keys=" , ")
