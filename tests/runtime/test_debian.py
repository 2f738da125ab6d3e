"""Packages from a mirror: the index, its signature, the closure, downloads. The mirror is served on loopback."""

import hashlib
import http.server
import lzma
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shutil import copytree

import pytest

from spotsurfer.agent_runtime import package_fetch
from spotsurfer.agent_runtime.package_fetch import AptSource, PlainSource
from spotsurfer.agent_runtime.recipe import Package
from spotsurfer.model.errors import RuntimeBuildError

MIRROR = Path(__file__).with_name("mirror")
INDEX = Path("dists/unstable/main/binary-amd64/Packages.xz")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A copy of the mirror and its address."""
    folder = tmp_path / "served"
    copytree(MIRROR, folder)
    (folder / "pool").mkdir()
    for name in ("tool", "library", "other"):
        (folder / "pool" / f"{name}.deb").write_text(name)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _package(name: str) -> Package:
    return Package(name, "1", f"pool/{name}.deb", hashlib.sha256(name.encode()).hexdigest())


def test_signed_index_is_read(served: tuple[Path, str]) -> None:
    index = PlainSource(served[1], MIRROR / "keyring.gpg").index()
    assert set(index) == {"tool", "library", "other"}
    assert index["tool"].package == Package("tool", "1.0-1", "pool/tool.deb", hashlib.sha256(b"tool").hexdigest())
    assert index["tool"].needs == (("library",), ("chooser", "other"), ("virtual",))
    assert index["other"].provides == ("virtual", "more")


def test_index_that_was_changed_is_refused(served: tuple[Path, str]) -> None:
    folder, address = served
    (folder / INDEX).write_bytes((folder / INDEX).read_bytes()[:-1] + b"x")
    with pytest.raises(RuntimeBuildError, match="does not match its signature"):
        PlainSource(address, MIRROR / "keyring.gpg").index()


def test_signature_of_a_stranger_is_refused(served: tuple[Path, str]) -> None:
    with pytest.raises(RuntimeBuildError, match="signature"):
        PlainSource(served[1], MIRROR / "stranger.gpg").index()


def test_text_around_the_signed_part_does_not_count(served: tuple[Path, str]) -> None:
    """A forged index and its hash written before the signed message must not be believed."""
    folder, address = served
    forged = b"Package: evil\n"
    (folder / INDEX).write_bytes(forged)
    release = folder / "dists/unstable/InRelease"
    line = f"SHA256:\n {hashlib.sha256(forged).hexdigest()} {len(forged)} main/binary-amd64/Packages.xz\n\n"
    release.write_text(line + release.read_text())
    with pytest.raises(RuntimeBuildError):
        PlainSource(address, MIRROR / "keyring.gpg").index()


@pytest.mark.parametrize("kind", [PlainSource, AptSource])
def test_missing_keyring_names_the_setting(kind: type[PlainSource] | type[AptSource], tmp_path: Path) -> None:
    with pytest.raises(RuntimeBuildError, match=package_fetch.KEYRING_VARIABLE):
        kind("http://127.0.0.1:9", tmp_path / "none.gpg").index()


def test_unreachable_mirror_names_the_setting() -> None:
    with pytest.raises(RuntimeBuildError, match=package_fetch.MIRROR_VARIABLE):
        PlainSource("http://127.0.0.1:9", MIRROR / "keyring.gpg").index()


@pytest.mark.parametrize("kind", [PlainSource, AptSource])
def test_fetch_takes_what_is_there(kind: type[PlainSource] | type[AptSource], served: tuple[Path, str], tmp_path: Path) -> None:
    wanted = [_package("tool"), _package("gone"), _package("other")]
    kind(served[1], MIRROR / "keyring.gpg").fetch(wanted, tmp_path)
    assert [p.name for p in package_fetch.absent(wanted, tmp_path)] == ["gone"]


def test_wrong_bytes_count_as_absent_and_go(tmp_path: Path) -> None:
    package = _package("tool")
    (tmp_path / package.file_name).write_text("half")
    assert package_fetch.absent([package], tmp_path) == [package]
    assert not (tmp_path / package.file_name).exists()


def test_closure_follows_alternatives_and_virtual_packages() -> None:
    index = package_fetch.parse_index(_text())
    names = [p.name for p in package_fetch.closure(index, ["tool"], frozenset())]
    assert names == ["library", "other", "tool"]


def test_closure_does_not_follow_what_is_not_wanted() -> None:
    index = package_fetch.parse_index(_text())
    names = [p.name for p in package_fetch.closure(index, ["tool"], frozenset({"other", "virtual"}))]
    assert names == ["library", "tool"]


def test_closure_names_what_the_suite_lacks() -> None:
    with pytest.raises(RuntimeBuildError, match="no nothing"):
        package_fetch.closure(package_fetch.parse_index(_text()), ["nothing"], frozenset())


def _text() -> str:
    return lzma.decompress((MIRROR / INDEX).read_bytes()).decode()


def test_host_without_apt_needs_a_mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(package_fetch, "APT_HELPER", tmp_path / "none")
    monkeypatch.delenv(package_fetch.MIRROR_VARIABLE, raising=False)
    with pytest.raises(RuntimeBuildError, match=package_fetch.MIRROR_VARIABLE):
        package_fetch.source()
    monkeypatch.setenv(package_fetch.MIRROR_VARIABLE, "http://127.0.0.1:9/debian/")
    monkeypatch.setenv(package_fetch.KEYRING_VARIABLE, "/keys.gpg")
    assert package_fetch.source() == PlainSource("http://127.0.0.1:9/debian", Path("/keys.gpg"))
