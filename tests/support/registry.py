"""A real registry (Debian's docker-registry) on a folder, and images for it made of Debian packages that are installed here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support import levels
from support.tree import ROOT

PORT = 5000
HOST = f"127.0.0.1:{PORT}"
# User "surfer", password "waves": `auth` of containers-auth.json, and its bcrypt hash for the registry.
LOGIN = "c3VyZmVyOndhdmVz"
HTPASSWD = "surfer:$2b$05$M0XwttY8l8HJQT69ZOOUIe3T1.bMCP01NcYleaAAzh4kzc7bfnDxu\n"
CONFIG = """version: 0.1
log: {{ level: error }}
storage: {{ filesystem: {{ rootdirectory: {folder} }}, delete: {{ enabled: true }} }}
http: {{ {address} }}
{auth}"""


@contextlib.contextmanager
def registry(folder: Path, port: int = PORT, htpasswd: Path | None = None, tls: Path | None = None) -> Iterator[str]:
    """The registry of a folder, on loopback while the block lasts; yields its address. `tls`: folder with its certificate."""
    secure = f", tls: {{ certificate: {tls}/cert.pem, key: {tls}/key.pem }}" if tls else ""
    with _serving(
        folder, f'addr: "127.0.0.1:{port}"{secure}', lambda: socket.create_connection(("127.0.0.1", port), 1).close(), htpasswd
    ):
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def registry_at(folder: Path, path: Path) -> Iterator[Path]:
    """The same on a Unix socket."""

    def connect() -> None:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))

    path.unlink(missing_ok=True)
    with _serving(folder, f'net: unix, addr: "{path}"', connect, None):
        yield path


@contextlib.contextmanager
def _serving(folder: Path, address: str, connect: Callable[[], None], htpasswd: Path | None) -> Iterator[None]:
    levels.only_for_real_tests("a registry")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder.with_name(f"{folder.name}.{os.getpid()}.yml")
    auth = f"auth: {{ htpasswd: {{ realm: test, path: {htpasswd} }} }}" if htpasswd else ""
    config.write_text(CONFIG.format(folder=folder, address=address, auth=auth))
    with _access_log(folder).open("ab") as log:
        process = subprocess.Popen(
            [_program(), "serve", str(config)], stdout=log, stderr=subprocess.DEVNULL, start_new_session=True
        )
    try:
        _answers(connect, process)
        yield
    finally:
        process.kill()
        process.wait(10)


def _access_log(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.access")


def times_fetched(folder: Path, name: str) -> int:
    """How often the largest blob of a repository was fetched, which is a layer."""
    sizes: dict[str, list[int]] = {}
    for digest, size in re.findall(rf'"GET /v2/{name}/blobs/(\S+) HTTP/\S+" 200 (\d+)', _access_log(folder).read_text()):
        sizes.setdefault(digest, []).append(int(size))
    return len(max(sizes.values(), key=max, default=[]))


def _program() -> str:
    """Where `make setup` put it where it is not installed."""
    return shutil.which("docker-registry") or str(ROOT / "build/tools/usr/bin/docker-registry")


def _answers(connect: Callable[[], None], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            connect()
            return
        time.sleep(0.02)
    raise AssertionError("docker-registry did not come up")


def certificate(folder: Path) -> Path:
    """One for loopback that nobody has signed, below `folder`."""
    folder.mkdir()
    names = ["-subj", "/CN=registry", "-addext", "subjectAltName=IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(folder / "key.pem")]
    _run("openssl", "req", "-x509", *key, "-out", str(folder / "cert.pem"), "-days", "2", *names)
    return folder


def authority(folder: Path, names: str) -> Path:
    """One for a registry of these alternative names, signed by an authority of its own, `ca.pem`, below `folder`."""
    folder.mkdir()
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    own = ["-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.pem"), "-days", "2", "-subj", "/CN=our authority"]
    _run("openssl", "req", "-x509", *curve, *own)
    asked = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "asked.pem"), "-subj", "/CN=registry"]
    _run("openssl", "req", "-new", *curve, *asked, "-addext", f"subjectAltName={names}")
    by = ["-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca.key"), "-CAcreateserial", "-copy_extensions", "copy"]
    _run("openssl", "x509", "-req", "-in", str(folder / "asked.pem"), *by, "-days", "2", "-out", str(folder / "cert.pem"))
    return folder


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image: installed Debian packages with what they need, files of its own, and its configuration."""

    packages: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    entry_point: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    user: str = ""
    architecture: str = "amd64"


def push(recipe: Recipe, storage: Path, name: str, work: Path) -> str:
    """Build the image and put it into the registry's storage as `name` ("tool:1"); returns its digest."""
    work.mkdir(parents=True, exist_ok=True)
    root, layout = work / "root", work / "layout"
    if not root.exists():
        tree_of(recipe.packages, root)
    for path, text in recipe.files.items():
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_text(text)
        (root / path.lstrip("/")).chmod(0o755)
    shutil.rmtree(layout, ignore_errors=True)
    _pack(recipe, root, layout)
    with registry(storage, free_port()) as host:
        copy = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]
        _run(*copy, f"oci:{layout}:made", f"docker://{host}/{name}")
        shown = _run("skopeo", "inspect", "--tls-verify=false", f"docker://{host}/{name}")
    return str(json.loads(shown)["Digest"])


def _pack(recipe: Recipe, root: Path, layout: Path) -> None:
    layer = layout.with_suffix(".tar")
    _run("tar", "-C", str(root), "--sort=name", "--mtime=@0", "-cf", str(layer), ".")
    image = f"{layout}:made"
    _run("umoci", "init", "--layout", str(layout))
    _run("umoci", "new", "--image", image)
    _run("umoci", "raw", "add-layer", "--image", image, str(layer))
    words = [("--config.entrypoint", x) for x in recipe.entry_point] + [("--config.cmd", x) for x in recipe.command]
    words += [("--config.env", f"{k}={v}") for k, v in recipe.environment.items()]
    words += [("--config.workingdir", recipe.folder)] if recipe.folder else []
    words += [("--config.user", recipe.user)] if recipe.user else []
    words += [("--architecture", recipe.architecture)]
    _run("umoci", "config", "--image", image, *(x for pair in words for x in pair))
    layer.unlink()


def tree_of(packages: Sequence[str], root: Path) -> None:
    """The files of installed packages and of all that they depend on, laid out as Debian does."""
    root.mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for name in ("etc", "tmp", "var/tmp", "root", "proc", "dev", "sys", "run"):
        (root / name).mkdir(parents=True, exist_ok=True)
    listed = root.with_suffix(".list")
    files = {_real(x) for p in closure(packages) for x in _listed(p)}
    files |= {_real(x) for p in closure(_chosen(files)) for x in _listed(p)}
    listed.write_text("\n".join(sorted(files)))
    pack = f"tar -C / --no-recursion --ignore-failed-read -cf - -T {listed} 2>/dev/null"
    subprocess.run(["bash", "-c", f"{pack} | tar -C {root} --keep-directory-symlink -xf -"], check=True)
    _made_at_installation(root, listed.read_text().splitlines())
    _alternatives(root)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nsurfer:x:1234:1234::/home:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nsurfer:x:1234:\nwaves:x:77:surfer\n")
    subprocess.run(["ldconfig", "-r", str(root)], check=True)


def closure(packages: Sequence[str]) -> list[str]:
    """These packages and what they depend on, as far as it is installed."""
    fields = "${Package}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    needs: dict[str, str] = {}
    provided: dict[str, str] = {}
    for line in _run("dpkg-query", "-W", "-f", fields).splitlines():
        name, wants, gives = line.split("\t")
        needs[name] = wants
        provided |= {word.split()[0]: name for word in gives.split(",") if word.strip()}
    found: list[str] = []
    todo = list(packages)
    while todo:
        name = todo.pop()
        name = name if name in needs else provided.get(name, "")
        if name and name not in found:
            found.append(name)
            groups = [g for g in needs[name].split(",") if g.strip()]
            todo += [a.split("(")[0].split(":")[0].strip() for g in groups for a in g.split("|")[:1]]
    return found


def _listed(package: str) -> list[str]:
    paths = _run("dpkg-query", "-L", package).splitlines()
    return [
        x for x in paths if x.startswith("/") and not x.startswith(("/usr/share/doc", "/usr/share/man", "/usr/share/locale"))
    ]


def _chosen(files: Collection[str]) -> list[str]:
    """Packages that this host prefers to alternatives of theirs which are in the tree: programs compute the same."""
    found = []
    for described in Path("/var/lib/dpkg/alternatives").iterdir():
        lines = described.read_text().splitlines()
        chosen, choices = os.path.realpath(lines[1]), [x for x in lines[lines.index("") :] if x.startswith("/")]
        if chosen.lstrip("/") not in files and any(_real(x) in files for x in choices):
            owners = subprocess.run(["dpkg-query", "-S", chosen], capture_output=True, text=True, check=False).stdout
            found += [owners.split(":")[0]] if owners else []
    return found


def _made_at_installation(root: Path, paths: Sequence[str]) -> None:
    """Files that links of a package lead to and that its installation makes, a configuration in /etc say."""
    for path in paths:
        real = os.path.realpath(Path("/", path))
        place = root / real.lstrip("/")
        if Path("/", path).is_symlink() and Path(real).is_file() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(real, place)


def _alternatives(root: Path) -> None:
    """The links that Debian's packages set up when they are installed: their names, through /etc, to what is in the tree."""
    for described in Path("/var/lib/dpkg/alternatives").iterdir():
        lines = described.read_text().splitlines()
        links = [lines[1], *lines[3 : lines.index("") : 2]]  # the master's, then each slave's behind its name
        for link in links:
            target = os.path.realpath(link)
            place = root / _real(link)
            if Path(link).is_symlink() and (root / target.lstrip("/")).exists() and not os.path.lexists(place):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(target)


def _real(path: str) -> str:
    """The same path without the links that stand for its folders, relative to the root."""
    return str(Path(os.path.realpath(Path(path).parent), Path(path).name)).lstrip("/")


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout
