"""Packages are unpacked safely, and the tarball depends on nothing but names, modes and contents."""

import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from spotsurfer.agent_runtime import base_layer, package_fetch
from spotsurfer.agent_runtime.recipe import Wheel
from spotsurfer.model.errors import RuntimeBuildError


def _deb(path: Path, files: dict[str, bytes], data_name: str = "data.tar.xz") -> Path:
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:xz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    archive = b"!<arch>\n"
    for name, content in {"debian-binary": b"2.0", data_name: inner.getvalue()}.items():
        archive += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content + b"\n" * (len(content) % 2)
        )
    path.write_bytes(archive)
    return path


def test_package_is_unpacked(tmp_path: Path) -> None:
    deb = _deb(tmp_path / "a.deb", {"./usr/bin/tool": b"text"})
    assert package_fetch.unpack_deb(deb, tmp_path / "prefix") == ["usr/bin/tool"]
    assert (tmp_path / "prefix/usr/bin/tool").read_bytes() == b"text"


@pytest.mark.parametrize("name", ["../outside", "./usr/../../outside", "/outside"])
def test_path_that_leaves_the_prefix_is_refused(tmp_path: Path, name: str) -> None:
    deb = _deb(tmp_path / "a.deb", {"./fine": b"1", name: b"2"})
    with pytest.raises(RuntimeBuildError, match="leaves its folder"):
        package_fetch.unpack_deb(deb, tmp_path / "prefix")
    assert not (tmp_path / "prefix").exists()


def test_what_is_no_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.deb").write_text("<html>")
    with pytest.raises(RuntimeBuildError, match="not a Debian package"):
        package_fetch.unpack_deb(tmp_path / "a.deb", tmp_path)
    with pytest.raises(RuntimeBuildError, match="no data"):
        package_fetch.unpack_deb(_deb(tmp_path / "b.deb", {}, data_name="control.tar.xz"), tmp_path)


def test_wheel_leaves_out_what_only_other_programs_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
        for name in ("w/__init__.py", "w/__init__.pyi", "w/py.typed", "w-1.dist-info/METADATA", "w-1.dist-info/RECORD"):
            archive.writestr(name, "")
    package_fetch.unpack_wheels([Wheel("w", "1", "w.whl", "")], tmp_path, tmp_path / "site")
    files = {p.relative_to(tmp_path / "site").as_posix() for p in (tmp_path / "site").rglob("*") if p.is_file()}
    assert files == {"w/__init__.py", "w-1.dist-info/METADATA"}


def _tree(folder: Path, names: list[str], seconds: int) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (seconds, seconds))
    (folder / names[0]).chmod(0o700 if seconds else 0o755)
    return folder


def test_equal_contents_are_equal_bytes(tmp_path: Path) -> None:
    """Order of creation, times and the umask do not count."""
    names = ["bin/run", "z", "a/b/c", "a/d"]
    first = _tree(tmp_path / "1", names, 0)
    second = _tree(tmp_path / "2", [names[0], *reversed(names[1:])], 10**9)
    assert base_layer.member(first, last=True) == base_layer.member(second, last=True)


@pytest.mark.parametrize("change", ["content", "mode", "name", "link"])
def test_any_difference_shows(tmp_path: Path, change: str) -> None:
    first, second = (_tree(tmp_path / n, ["run", "a"], 0) for n in "12")
    (first / "link").symlink_to("a")
    (second / "link").symlink_to("b" if change == "link" else "a")
    if change == "content":
        (second / "a").write_text("other")
    if change == "mode":
        (second / "a").chmod(0o755)
    if change == "name":
        (second / "a").rename(second / "b")
    assert base_layer.member(first, last=True) != base_layer.member(second, last=True)


def test_two_members_are_one_archive(tmp_path: Path) -> None:
    base, own = _tree(tmp_path / "1", ["prefix/a"], 0), _tree(tmp_path / "2", ["bin/b"], 0)
    (own / "bin/link").symlink_to("b")
    both = tmp_path / "both.tar.gz"
    both.write_bytes(base_layer.member(base, last=False) + base_layer.member(own, last=True))
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-xzf", both, "-C", out], check=True)
    assert (out / "prefix/a").read_text() == "prefix/a"
    assert (out / "bin/link").read_text() == "bin/b"
    with tarfile.open(both) as tar:
        assert {(m.uid, m.gid, m.mtime, m.uname) for m in tar} == {(0, 0, 0, "")}
