"""A manifest is ours and whole, or it is not used."""

from __future__ import annotations

import dataclasses
from array import array

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_wire import manifest
from spotsurfer_wire.crypto import Keys, WrongKey, lineage_secret
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.manifest import Entry, Extents, Manifest, Stored

KEYS = Keys.derive(b"k" * 32, "j")
HIDDEN = dataclasses.replace(KEYS, encrypts=True)
TABLE = [Stored("a" * 64, 100), Stored("b" * 64, 50, "c" * 64, 7, 30), Stored("d" * 64, 9, "c" * 64, 37, 9)]
FILE = Entry("secret-name", "file", size=1000, extents=Extents.of([(500, 50, 1, 0), (0, 60, 0, 40)]))


def image(**changes):
    plain = Manifest(
        id="000001-000001", job="j", epoch=1, sequence=1, kind="live", engine="criu", facts={"machine": "x86_64"}, image=[FILE],
        scratch=[Entry("d", "dir")], log={"out": 3}, init_pipes={}, cpu_seconds=1.5, frozen_seconds=0.1, image_bytes=110, at="",
        chunks=TABLE, lineage="j",
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


@pytest.mark.parametrize("keys", [KEYS, HIDDEN], ids=["plain", "encrypted"])
def test_it_comes_back_as_it_was(keys):
    data = manifest.encode(image(), keys)
    assert manifest.decode(data, KEYS, "j") == image()
    assert list(manifest.decode(data, KEYS, "j").image[0].extents) == [(0, 60, 0, 40), (500, 50, 1, 0)]


@pytest.mark.parametrize("keys", [KEYS, HIDDEN], ids=["plain", "encrypted"])
def test_not_one_byte_may_be_changed_left_out_or_added(keys):
    data = manifest.encode(image(), keys)
    forged = [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(len(data))]
    forged += [data[:i] for i in range(len(data))] + [data + b"\0"]
    for one in forged:
        with pytest.raises(ProtocolError, match="not written with this job's key, or was changed or cut off"):
            manifest.decode(one, KEYS, "j")


OTHERS = {
    "another secret": Keys.derive(b"x" * 32, "j"),
    "another lineage": Keys.derive(b"k" * 32, "other"),
    "no secret": Keys.derive(b"", "j"),
}


@pytest.mark.parametrize("keys", OTHERS.values(), ids=OTHERS)
def test_a_wrong_key_is_said(keys):
    with pytest.raises(ProtocolError, match="not written with this job's key"):
        manifest.decode(manifest.encode(image(), KEYS), keys, "j")


def test_another_form_is_named():
    earlier = b"SSM2" + manifest.encode(image(), KEYS)[len(manifest.MARK) : -manifest.SEAL_BYTES]
    with pytest.raises(ProtocolError, match="form 'SSM2', and this spotsurfer knows 'SSM3' alone"):
        manifest.decode(earlier + manifest._seal(earlier, KEYS), KEYS, "j")


def test_an_older_one_of_the_same_job_is_not_taken_for_it():
    data = manifest.encode(image(), KEYS)
    assert manifest.decode(data, KEYS, "j", "000001-000001").sequence == 1
    with pytest.raises(ProtocolError, match="000001-000001 for that of 000001-000002"):
        manifest.decode(data, KEYS, "j", "000001-000002")


def test_one_of_another_job_is_not_taken_for_it():
    """A copy shares its origin's keys, so the seal of its checkpoints is right here, too: so is the name of its first one."""
    copies = manifest.encode(image(job="j-copy", lineage="j"), KEYS)
    with pytest.raises(ProtocolError, match="of job j-copy for one of j: it is not used"):
        manifest.decode(copies, KEYS, "j", "000001-000001")
    assert manifest.decode(copies, KEYS, "j-copy").job == "j-copy"


def test_what_is_encrypted_says_nothing():
    plain = zstandard.ZstdDecompressor().decompress(manifest.encode(image(), KEYS)[5:-32])
    assert b"secret-name" in plain
    data = manifest.encode(image(), HIDDEN)
    with pytest.raises(zstandard.ZstdError):
        zstandard.ZstdDecompressor().decompress(data[5:-32])
    assert data != manifest.encode(image(), HIDDEN), "never the same nonce"


HOSTILE = {
    "a name that is no digest": {"chunks": [Stored("../" + "a" * 61, 100), *TABLE[1:]]},
    "a pack that is no digest": {"chunks": [Stored("a" * 64, 100, "../../x", 0, 3), *TABLE[1:]]},
    "an empty chunk": {"chunks": [Stored("a" * 64, 0), *TABLE[1:]]},
    "a huge chunk": {"chunks": [Stored("a" * 64, manifest.CHUNK_BYTES_MAX + 1), *TABLE[1:]]},
    "a part beyond its pack": {"chunks": [Stored("a" * 64, 100, "c" * 64, manifest.PACK_BYTES_MAX, 1), *TABLE[1:]]},
    "an empty part": {"chunks": [Stored("a" * 64, 100, "c" * 64, 0, 0), *TABLE[1:]]},
    "a table that is too short": {"chunks": TABLE[:1]},
    "extents beyond the file": {"image": [dataclasses.replace(FILE, size=549)]},
}


WIDE = 123456789012345678901234567890
NUMBERS = [
    *({"scratch": [dataclasses.replace(FILE, **{name: n})]} for name in ("mode", "uid", "gid", "size") for n in (-1, WIDE)),
    {"scratch": [Entry("d", "dir", mtime_ns=WIDE)]},
    {"scratch": [Entry("d", "dir", size=WIDE)]},
    {"log": {"out": -1}},
    {"log": {"out": WIDE}},
    {"sequence": WIDE},
    {"epoch": -1},
    {"image_bytes": WIDE},
]


@pytest.mark.parametrize("changes", NUMBERS, ids=lambda c: next(iter(c)))
def test_numbers_that_the_kernel_would_not_take_are_refused_even_when_sealed(changes):
    with pytest.raises(ProtocolError):
        manifest.decode(manifest.encode(image(**changes), KEYS), KEYS, "j")


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_what_no_writer_makes_is_refused_even_when_sealed(changes):
    data = manifest.encode(image(**changes), KEYS)
    with pytest.raises(ProtocolError):
        manifest.decode(data, KEYS, "j")


@pytest.mark.parametrize("body", [b"", b"SSM3", b"SSM3p", b"SSM3pnot zstd", b"SSM3e" + bytes(40), b"SSM1p" + bytes(9)])
def test_damage_under_a_right_seal_is_named(body):
    with pytest.raises(ProtocolError, match=r"damaged|of form '(SSM1)?', and this spotsurfer knows"):
        manifest.decode(body + manifest._seal(body, KEYS), KEYS, "j")


ROWS = st.lists(
    st.tuples(st.integers(0, 99), st.integers(1, 5), st.integers(0, 3), st.integers(0, 50)),
    max_size=20,
    unique_by=lambda x: x[0],
).map(lambda rows: [(at * 5, length, chunk, skip) for at, length, chunk, skip in rows])


@given(ROWS)
def test_extents_say_of_every_byte_where_it_is(rows):
    extents = Extents.of(rows)
    place = {at + i: (chunk, skip + i) for at, length, chunk, skip in rows for i in range(length)}
    assert {e.offset + i: (e.chunk, e.skip + i) for e in extents for i in range(e.length)} == place
    assert Extents.from_wire(extents.to_wire()) == extents
    assert extents.bytes == len(place)
    extents.validate(600, manifest.sizes([Stored("a" * 64, 100)] * 4))
    moved = extents.moved({chunk: chunk + 7 for chunk in extents.chunks()})
    assert [(e.offset, e.length, e.chunk - 7, e.skip) for e in moved] == list(extents)


def test_neighbours_that_continue_each_other_are_one_extent():
    rows = [(0, 5, 1, 0), (5, 5, 1, 5), (10, 5, 1, 11), (15, 1, 2, 16)]
    assert list(Extents.of(rows)) == [(0, 10, 1, 0), *rows[2:]]


@pytest.mark.parametrize("text", ["?", "AAAA", 3, None, "A" * 43])
def test_rows_that_are_none_are_refused(text):
    with pytest.raises(ProtocolError, match="extents are"):
        Extents.from_wire(text)


def test_live_bytes_tell_how_much_of_each_chunk_is_used():
    assert manifest.live_bytes(image()) == [60, 50, 0]


def test_hundreds_of_thousands_of_extents_stay_small():
    rows = array("Q")
    for i in range(100_000):
        rows.extend((8192 * i, 4096, i % 3, i % 4))
    table = [Stored(c * 64, 8192) for c in "abc"]
    many = image(image=[Entry("pages", "file", size=8192 * 100_000, extents=Extents(rows))], chunks=table)
    data = manifest.encode(many, KEYS)
    assert len(data) < 3_200_000
    assert manifest.decode(data, KEYS, "j") == many


@pytest.mark.parametrize("text", ["zz", "ab", "ab" * 31, "ab" * 33])
def test_a_secret_that_is_none_is_said(text):
    with pytest.raises(WrongKey, match="64 hexadecimal digits"):
        Keys.of_hex(text, "j")


def test_one_lineage_learns_nothing_of_another():
    master = b"m" * 32
    assert lineage_secret(master, "a") != lineage_secret(master, "b")
    one = Keys.of_hex(lineage_secret(master, "a").hex(), "a")
    assert len({one.name, one.seal, one.cipher}) == 3
    assert b"m" * 8 not in one.name
    assert "name" not in repr(one)


def test_a_file_may_be_dated_after_2262():
    """Its time does not fit into 64 bits as nanoseconds; such a checkpoint was written and could not be read."""
    late = image(scratch=[Entry("late.txt", "file", 0o644, 0, 0, 10_413_792_000_000_000_000)])
    assert manifest.decode(manifest.encode(late, KEYS), KEYS, "j") == late
