"""One encrypted file: whatever is changed, cut off, moved or guessed wrong, no byte of it is believed."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import pytest

from spotsurfer.model.errors import Denied, InputMissing
from spotsurfer.recovery import backup
from spotsurfer.recovery.backup import PIECE_BYTES, TAG_BYTES, Reader, Writer

SECRET, ABOUT = "correct horse", {"spotsurfer": "1.2.3", "members": []}


@pytest.fixture(autouse=True)
def cheap_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes guesses dear would make these tests slow."""
    monkeypatch.setattr(backup, "SCRYPT_LOG_N", 1)


def sealed(content: bytes, secret: str = SECRET) -> bytes:
    out = io.BytesIO()
    writer = Writer(out, secret, ABOUT, len(content))
    writer.write(content)
    writer.close()
    return out.getvalue()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "b"


def opened(path: Path, data: bytes, secret: str = SECRET) -> tuple[dict[str, object], bytes]:
    path.write_bytes(data)
    with path.open("rb") as file:
        reader = Reader(file, str(path), secret)
        return reader.about, b"".join(iter(lambda: reader.read(70_000), b""))


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_what_went_in_comes_out(path: Path, size: int) -> None:
    content = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    assert opened(path, sealed(content)) == (ABOUT, content)


def test_the_passphrase_alone_opens_it(path: Path) -> None:
    data = sealed(b"top secret")
    assert b"top secret" not in data and SECRET.encode() not in data
    with pytest.raises(Denied, match=r"The passphrase does not open .*/b: take the one that it was made with"):
        opened(path, data, "correct hose")


def test_no_byte_may_be_changed(path: Path) -> None:
    """In the 16 bytes of the tag a change looks like a wrong passphrase; anywhere else it is called damage."""
    data, denied = sealed(b"content"), 0
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises((InputMissing, Denied)) as e:
            opened(path, changed)
        denied += e.type is Denied
    assert denied == TAG_BYTES


def test_no_length_but_the_whole_one_is_taken(path: Path) -> None:
    data = sealed(b"content")
    for length in range(len(data)):
        with pytest.raises(InputMissing):
            opened(path, data[:length])
    with pytest.raises(InputMissing, match=f"cut off: {len(data) - 1} of {len(data)} bytes are there"):
        opened(path, data[:-1])
    with pytest.raises(InputMissing, match="1 bytes follow its end"):
        opened(path, data + b"x")


def test_pieces_stay_in_their_place_and_in_their_file(path: Path) -> None:
    """With one passphrase and equal headers, too: each file has a salt, and so a key, of its own."""
    one, other = sealed(bytes(2 * PIECE_BYTES)), sealed(bytes(2 * PIECE_BYTES))
    stride = PIECE_BYTES + TAG_BYTES
    first, second = one[-2 * stride : -stride], one[-stride:]
    for pieces in (second + first, first + first, other[-2 * stride :]):
        with pytest.raises(InputMissing, match=r"damaged \(piece [12] was changed\)"):
            opened(path, one[: -2 * stride] + pieces)


def test_a_newer_form_names_who_wrote_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "FORM", 2)
    data = sealed(b"x")
    monkeypatch.setattr(backup, "FORM", 1)
    with pytest.raises(InputMissing, match=r"written by spotsurfer 1\.2\.3 in a newer form than this version reads"):
        opened(path, data)


@pytest.mark.parametrize("log_n", [0, 21, 60])
def test_a_file_can_not_ask_for_all_memory(path: Path, monkeypatch: pytest.MonkeyPatch, log_n: int) -> None:
    data = sealed(b"x")
    text = data.replace(b'"scrypt_log_n": 1}', f'"scrypt_log_n": {log_n}}}'.encode())
    length = int.from_bytes(data[8:12], "little") + len(text) - len(data)
    begin = text[:8] + length.to_bytes(4, "little") + text[12 : 12 + length]
    with pytest.raises(InputMissing, match="its header was changed"):
        opened(path, begin + backup.hashlib.sha256(begin).digest() + text[12 + length + 32 :])


@pytest.mark.parametrize("data", [b"", b"SSBA", b"something else entirely", b"SSBACKUP\xff\xff\xff\xff"])
def test_what_is_no_backup_is_told(path: Path, data: bytes) -> None:
    with pytest.raises(InputMissing, match=r"is no backup of spotsurfer|is damaged"):
        opened(path, data)


def test_memory_does_not_grow_with_the_content(path: Path) -> None:
    content = bytes(PIECE_BYTES)
    with path.open("wb") as out:
        writer = Writer(out, SECRET, ABOUT, 12 * PIECE_BYTES)
        tracemalloc.start()
        for _ in range(12):
            writer.write(content)
        writer.close()
    with path.open("rb") as file:
        reader = Reader(file, "b", SECRET)
        while reader.read(PIECE_BYTES):
            pass
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 6 * PIECE_BYTES


def test_what_was_announced_must_come(path: Path) -> None:
    writer = Writer(io.BytesIO(), SECRET, ABOUT, 2)
    with pytest.raises(ValueError, match="more bytes"):
        writer.write(b"abc")
    with pytest.raises(ValueError, match="are missing"):
        Writer(io.BytesIO(), SECRET, ABOUT, 2).close()
