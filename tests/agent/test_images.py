"""Container images: names, configurations, accounts, mount points, the table of errors; without a registry."""

from __future__ import annotations

import dataclasses
import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
from spotsurfer_agent.engines.job_host import JobHost
from spotsurfer_agent.host.root_fs import Mount, mounts, on_machine
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_agent.prepare import environment
from spotsurfer_agent.prepare.environment import World
from spotsurfer_agent.prepare.images import cache, cdi, registry
from spotsurfer_agent.prepare.images.cache import Images, Root, Shelf
from spotsurfer_agent.prepare.images.registry import ImageConfig, ImageError, Kind
from spotsurfer_agent.restore import compatibility
from spotsurfer_wire.container_image import Pins, Reference
from spotsurfer_wire.json_codec import encode
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store

DIGEST = "sha256:" + "ab" * 32
ENGINE: Any = SimpleNamespace(kill=lambda: None)


@pytest.mark.parametrize(
    ("text", "host", "asked"),
    [
        ("docker://reg.example:5000/tools/bwa:0.7", "reg.example:5000", "docker://reg.example:5000/tools/bwa:0.7"),
        ("docker://reg.example/bwa", "reg.example", "docker://reg.example/bwa:latest"),
        (f"docker://reg.example/bwa:0.7@{DIGEST}", "reg.example", f"docker://reg.example/bwa@{DIGEST}"),
        ("docker://localhost/bwa:1", "localhost", "docker://localhost/bwa:1"),
        ("docker://tools/bwa_x-y.z:1", "that names without a host mean", "docker://tools/bwa_x-y.z:1"),
    ],
)
def test_names(text, host, asked):
    found = Reference.parse(text)
    assert (found.host, found.asked) == (host, asked)


@pytest.mark.parametrize(
    "text",
    ["", "bwa:1", "oci:/tmp/x", "docker://", "docker://Reg/BWA", "docker://x/y:1@sha256:12", "docker://x/y z", "docker://x/-y"],
)
def test_what_is_no_name(text):
    with pytest.raises(ValueError, match="expected docker://"):
        Reference.parse(text)


SAID = {
    "full disk": 'level=fatal msg="writing blob: write /x: no space left on device"',
    "throttled": "reading manifest 1 in r/x: toomanyrequests: You have reached your limit",
    "plain registry": "pinging container registry r: http: server gave HTTP response to HTTPS client",
    "another name": "Get https://r/v2/: tls: failed to verify certificate: x509: certificate is valid for 127.0.0.2, not r",
    "expired": "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026",
    "untrusted": "Get https://r/v2/: tls: failed to verify certificate: x509: certificate signed by unknown authority",
    "denied": "reading manifest 1 in r/x: unauthorized: authentication required",
    "wrong architecture": 'choosing an image: no image found in image index for architecture "amd64"',
    "damaged layer": "writing blob: happened during read: Digest did not match, expected sha256:1, got sha256:2",
    "unknown image": "reading manifest 1 in r/x: manifest unknown: manifest unknown",
    "registry down": "pinging container registry r: dial tcp 127.0.0.1:5000: connect: connection refused",
}


@pytest.mark.parametrize("row", registry.ROWS, ids=lambda r: r.name)
def test_each_failure_has_one_sentence_with_a_remedy(row):
    said = SAID[row.name]
    assert registry.row(said) is row
    told = str(registry.failure(said, "r/x:1", "r"))
    assert "{" not in told
    assert ":" in told, "what to do about it"
    assert registry.failure(said, "r/x:1", "r").kind is row.kind


def test_of_a_certificate_only_what_is_wrong_with_it_is_told():
    told = str(registry.failure(SAID["another name"], "r/x:1", "r"))
    assert "is not for that name (certificate is valid for 127.0.0.2, not r): use" in told


def test_what_no_row_knows_is_told_in_the_tools_words():
    told = registry.failure('time="1" level=fatal msg="something \\"odd\\" happened"', "r/x:1", "r")
    assert str(told) == 'the image r/x:1 can\'t be used: something "odd" happened'


def test_the_jobs_words_win():
    image = ImageConfig(entry_point=["tool"], command=["help"])
    assert image.words(None, []) == ["tool", "help"]
    assert image.words(None, ["run", "x"]) == ["tool", "run", "x"]
    assert image.words([], ["sh"]) == ["sh"]
    assert image.words(["other"], []) == ["other"]


def test_configurations_of_both_forms():
    raw = {
        "architecture": "arm64",
        "config": {"Env": ["A=1=2", "B="], "Entrypoint": None, "Cmd": ["x"], "User": "me", "WorkingDir": "/w"},
    }
    found = ImageConfig.of_oci(raw)
    assert (found.environment, found.entry_point, found.command) == ({"A": "1=2", "B": ""}, [], ["x"])
    assert (found.user, found.folder, found.architecture, found.system) == ("me", "/w", "arm64", "linux")
    assert ImageConfig.of_oci({}) == ImageConfig()


def test_accounts_are_the_images_own(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:/x\nme:x:12:34::/:/x\nbroken\nodd:x:a:b::/:/x\n")
    (tmp_path / "etc/group").write_text("them:x:34:\nmore:x:77:me,you\n")
    cases = {"": (0, 0, []), "me": (12, 34, [34, 77]), "12": (12, 34, [34, 77]), "me:more": (12, 77, []), "9:8": (9, 8, [])}
    for user, (uid, gid, groups) in cases.items():
        found = environment.find_account(tmp_path, user)
        assert (found.uid, found.gid, found.groups) == (uid, gid, groups), user
    for user in ("you", "odd", "me:nobody"):
        with pytest.raises(environment.UnknownUser, match="does not exist in the image"):
            environment.find_account(tmp_path, user)
    outside = tmp_path / "outside"
    outside.write_text("evil:x:0:0::/:/x\n")
    (tmp_path / "etc/passwd").unlink()
    (tmp_path / "etc/passwd").symlink_to(outside)
    with pytest.raises(OSError, match="does not exist"):
        environment.find_account(tmp_path, "evil")


@pytest.mark.parametrize(
    ("error", "kind"),
    [(environment.UnknownUser("the user 'me' does not exist"), "user"), (OSError(2, "No such file or directory"), "start")],
)
def test_an_unknown_user_is_not_taken_for_a_machine_that_can_not_start_the_job(error, kind):
    """It bought three machines."""
    with pytest.raises(EngineError) as told, JobHost._or_dead(ENGINE):
        raise error
    assert (told.value.kind, error.strerror in str(told.value)) == (kind, True)


def test_an_account_that_the_machine_lacks_is_an_unknown_user():
    with pytest.raises(environment.UnknownUser, match="'no-such-user' does not exist on this machine"):
        environment._account("no-such-user")


@pytest.mark.parametrize(
    ("image", "user", "uid", "name"),
    [
        (None, None, 0, "root"),  # a job of before
        (None, "root", 0, "root"),
        (None, "unprivileged", 65534, "nobody"),
        ("", None, 0, "root"),
        ("me", None, 12, "me"),
        ("", "unprivileged", 65534, "nobody"),
        ("root", "unprivileged", 65534, "nobody"),
        ("0:77", "unprivileged", 65534, "nobody"),
        ("me", "unprivileged", 12, "me"),
        ("me", "root", 0, "root"),
        ("me", "me", 12, "me"),
    ],
)
def test_root_is_only_who_asks_for_it(tmp_path, image, user, uid, name):
    """`image`: the user that its image names; None = it has none."""
    images = Images(tmp_path, "j", open_store(tmp_path.as_uri()), Tools((), (), (), (), "", ()))
    world, root = World(tmp_path, "j", images), tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/passwd").write_text("me:x:12:34::/:/x\n")
    if image is not None:
        (tmp_path / "job").mkdir()
        (tmp_path / "job/root.json").write_text(
            json.dumps(dataclasses.asdict(Root(DIGEST, str(root), ImageConfig(user=image))))
        )
    found = world.account(Spec("j", [], user=user))
    assert (found.uid, found.name) == (uid, name)
    assert 0 not in found.groups or uid == 0


def test_a_working_folder_that_the_image_lacks_is_made_for_every_user(tmp_path):
    (tmp_path / "here").write_text("a file")
    (tmp_path / "away").symlink_to("/nowhere")
    before = os.umask(0o077)  # as the agent's
    try:
        for folder in ("/srv/tool", "//srv/tool", "/here", "/away/deep", "/", ""):
            cache.working_folder(tmp_path, folder)
    finally:
        os.umask(before)
    assert [oct(tmp_path.joinpath(x).stat().st_mode & 0o777) for x in ("srv", "srv/tool")] == ["0o755", "0o755"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["away", "here", "srv"]
    assert (tmp_path / "here").read_text() == "a file"


def test_mount_points_never_lead_out_of_the_tree(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (root / "etc").mkdir(parents=True)
    (root / "tmp").symlink_to(outside)
    (root / "etc/hosts").symlink_to(outside / "hosts")
    (root / "etc/resolv.conf").mkdir()
    cache.mount_points(root, "/var/lib/agent", [Mount("x", str(outside), "/data/deep")])
    for name in ("tmp", "var/tmp", "dev", "proc", "run", "var/lib/agent", "data/deep"):
        assert (root / name).is_dir()
        assert not (root / name).is_symlink()
    assert (root / "etc/hosts").is_file()
    assert (root / "etc/resolv.conf").is_file()
    assert list(outside.iterdir()) == []
    (root / "linked").symlink_to(outside)
    with pytest.raises(ImageError, match="linked of /linked/x is a link"):
        cache.make(root, "/linked/x", folder=True)
    (root / "full").mkdir()
    (root / "full/x").write_text("x")
    with pytest.raises(ImageError, match="no room for the mount point /full"):
        cache.make(root, "/full", folder=False)


def test_of_several_architectures_ours_is_taken():
    ours = {"digest": "sha256:1", "platform": {"os": "linux", "architecture": registry.architecture()}}
    other = {"digest": "sha256:2", "platform": {"os": "linux", "architecture": "s390x"}}
    name = Reference.parse("docker://r.example/x:1")
    assert registry._chosen({"manifests": [other, ours]}, name) == "sha256:1"
    with pytest.raises(ImageError, match=r"r\.example/x:1 is made for linux/s390x, this machine is linux/"):
        registry._chosen({"manifests": [other]}, name)


def test_the_first_one_to_pin_wins(tmp_path):
    store = open_store(f"file://{tmp_path}")
    first, second = Pins(store, "j"), Pins(store, "j")
    assert second.read() is None
    assert first.write("docker://x/y:1", DIGEST, "amd64", 7).digest == DIGEST
    assert second.write("docker://x/y:1", "sha256:other", "amd64", 8).digest == DIGEST
    found = Pins(store, "j").read()
    assert found is not None
    with pytest.raises(ImageError, match="resolved for amd64, this machine is arm64") as told:
        cache.check_architecture(found, "arm64")
    assert told.value.kind is Kind.MACHINE
    assert json.loads(encode(found))["protocol"] == 1


def test_a_shelf_shows_only_what_is_whole_and_forgets_what_was_left(tmp_path):
    shelf = Shelf(tmp_path)
    with shelf.alone(), shelf.aside(DIGEST) as made:
        (made / cache.ROOT).mkdir()
        assert shelf.get(DIGEST) is None
        root = shelf.put(made, DIGEST, ImageConfig(user="me"))
    assert shelf.get(DIGEST) == root == Root.from_json(json.loads(json.dumps(dataclasses.asdict(root))))
    for left in (".making-abcd", ".gone-abcd"):
        (shelf.folder / left / "deep").mkdir(parents=True)
    with shelf.alone():
        assert sorted(p.name for p in shelf.folder.iterdir()) == [".lock", "ab" * 32]
    (shelf.folder / ("ab" * 32) / "image.json").write_text("torn")
    assert shelf.get(DIGEST) is None


def test_paths_of_the_job_are_found_on_the_machine():
    plan = [Mount("scratch", "/m/scratch", "/base"), Mount("x", "/m/x", "/base/in")]
    assert on_machine("/base/in/a", plan, "/img") == "/m/x/a"
    assert on_machine("/base/a", plan, "/img") == "/m/scratch/a"
    assert on_machine("/usr/bin/x", plan, "/img") == "/img/usr/bin/x"
    assert on_machine("/usr/bin/x", plan) == "/usr/bin/x"


def test_an_image_job_sees_nothing_of_the_machines_disks():
    seen = {m.target: m for m in mounts("/base", "/m/scratch", "/img")}
    assert {"/run", "/base", "/tmp", "/etc/hosts", "/etc/resolv.conf", "/dev", "/sys"} <= set(seen)
    assert seen["/run"].source == "/m/scratch/run"
    assert not [m for m in seen.values() if m.name.startswith("disk")]


def test_facts_name_the_image_and_look_into_it(tmp_path):
    (tmp_path / "prog").write_bytes(b"12345")
    theirs = {**compatibility.machine_facts("4.2", "/b", ["/b"], DIGEST), "file /prog": "5 bytes"}
    here = compatibility.machine_facts("4.2", "/b", ["/b"], DIGEST)
    inside = lambda p: str(tmp_path) + p  # noqa: E731
    assert compatibility.refusal(theirs, here, inside) is None
    assert compatibility.refusal(theirs, here, None) is None, "its tree is not here yet"
    (tmp_path / "prog").write_bytes(b"123456")
    assert "'5 bytes' where it was made and is '6 bytes' here" in str(compatibility.refusal(theirs, here, inside))
    other = compatibility.machine_facts("4.2", "/b", ["/b"])
    told = str(compatibility.refusal(theirs, other, None))
    assert DIGEST in told
    assert "machine's own root" in told


def test_devices_are_found_by_their_names(tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libcuda.so.1.2").write_text("x")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.1.2")
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    mount = {"hostPath": str(folder / "libcuda.so.1.2"), "containerPath": "/usr/lib/libcuda.so.1.2"}
    edits = {"mounts": [mount, {}, {"hostPath": "/absent", "containerPath": "/x"}], "env": ["V=all"]}
    spec = {"kind": "v.com/gpu", "devices": [{"name": "0", "containerEdits": edits}, {"name": "1", "containerEdits": edits}]}
    (tmp_path / "v.json").write_text(json.dumps(spec))
    (tmp_path / "broken.json").write_text("{")
    found = cdi.find(("v.com/gpu=0", "v.com/gpu=1"), (str(tmp_path),))
    assert [m.target for m in found.mounts] == ["/usr/lib/libcuda.so.1.2"]
    assert set(found.links) == {"libcuda.so", "libcuda.so.1", "libcuda.so.1.2"}
    assert found.added_to({"A": "1"}) == {"A": "1", "V": "all", "LD_LIBRARY_PATH": "/run/driver"}
    assert found.added_to({"LD_LIBRARY_PATH": "/opt/lib"})["LD_LIBRARY_PATH"] == "/run/driver:/opt/lib"
    assert cdi.Devices().added_to({"A": "1"}) == {"A": "1"}
    cdi.lay_links(found, tmp_path)
    assert (tmp_path / "driver/libcuda.so.1").readlink().as_posix() == "/usr/lib/libcuda.so.1.2"
    with pytest.raises(ImageError, match=r"no device v\.com/gpu=7 \(it has v\.com/gpu=0, v\.com/gpu=1\)"):
        cdi.find(("v.com/gpu=7",), (str(tmp_path),))


def a_registry(folder, script, patience_seconds=5.0):
    """One whose skopeo is a shell script; it finds its folder in $HOME/.."""
    tools = Tools(criu=(), ip=(), nft=(), btrfs=(), tini="", python=(), skopeo=("/bin/sh", "-c", script, "skopeo"))
    return registry.Registry(
        tools, folder, registry.ImageRules(insecure=("r.example:5000",), patience_seconds=patience_seconds), b'{"auths": {}}'
    )


def test_a_registry_that_stumbles_is_asked_again_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "PAUSES_SECONDS", (0.01,))
    name = Reference.parse("docker://r.example:5000/x:1")
    third = 'cd "$HOME"; echo x >> tries; [ $(wc -l < tries) -ge 3 ] && exec echo {}; echo "connection refused" >&2; exit 1'
    assert a_registry(tmp_path / "a", third)._ask([], name) == b"{}\n"
    down = a_registry(tmp_path / "b", 'echo "connection refused" >&2; exit 1', 0.05)
    with pytest.raises(ImageError, match=r"r\.example:5000 can't be reached") as told:
        down.find(name)
    assert told.value.kind is Kind.LATER
    once = 'cd "$HOME"; echo x >> tries; [ $(wc -l < tries) -lt 2 ] || exit 7; echo "manifest unknown" >&2; exit 1'
    with pytest.raises(ImageError, match=r"has no image r\.example:5000/x:1"):
        a_registry(tmp_path / "c", once)._ask([], name)


def test_a_download_that_stands_still_is_given_up_and_one_that_moves_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "STALL_SECONDS", 1.2)
    name = Reference.parse("docker://r.example/x:1")
    moves = 'cd "$TMPDIR"; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo x >> part; sleep 0.15; done; echo done'
    assert a_registry(tmp_path / "a", moves)._ask([], name, seconds=None) == b"done\n"
    with pytest.raises(ImageError, match="nothing came any more"):
        a_registry(tmp_path / "b", "exec sleep 60", 0.1)._ask([], name, seconds=None)


def test_the_tools_see_nothing_of_the_machines_users(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setenv("https_proxy", "http://proxy.example")
    told = a_registry(tmp_path, 'echo "$HOME $https_proxy"; echo "$@"')._ask([], Reference.parse("docker://x/y")).decode()
    assert told.startswith(f"{tmp_path}/home http://proxy.example\n")
    assert "--insecure-policy" in told
    assert (tmp_path / "auth.json").stat().st_mode & 0o777 == 0o600
    assert 'location = "r.example:5000"\ninsecure = true' in (tmp_path / "registries.conf").read_text()


@pytest.mark.parametrize(("script", "there"), [("echo '{}'", True), ("exit 1", False), ("sleep 60", False)])
def test_where_no_file_describes_a_device_its_vendors_tool_is_asked(tmp_path, monkeypatch, script, there):
    tool = tmp_path / "describe"
    text = json.dumps({"kind": "v.com/gpu", "devices": [{"name": "all"}], "containerEdits": {"env": ["V=1"]}})
    tool.write_text(f"#!/bin/sh\n{script.replace('{}', text)}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(cdi, "GENERATORS", {"v.com/gpu": (str(tool),)})
    if script.startswith("sleep"):
        monkeypatch.setattr(cdi, "TOOL_SECONDS", 0.3)
    cdi.find.cache_clear()
    if there:
        assert cdi.find(("v.com/gpu=all",), (str(tmp_path),)).environment == {"V": "1"}
    else:
        with pytest.raises(ImageError, match="it has none of that kind"):
            cdi.find(("v.com/gpu=all",), (str(tmp_path),))
