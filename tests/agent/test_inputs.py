"""Inputs from buckets and the web: what arrives, once a machine, always the same, and one sentence for everything else."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_agent.prepare.inputs import download, sources
from spotsurfer_agent.prepare.inputs.cache import Cache
from spotsurfer_agent.prepare.inputs.delivery import Delivery
from spotsurfer_agent.prepare.inputs.sources import InputTrouble, Sources, Unreachable
from spotsurfer_agent.store.layers import FenceClosed, Retry
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import Fetch, Pins, Spec
from support.agent_world import JOB, DictStore
from support.sources import Buckets, Mood, Web, serving


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def buckets(tmp_path: Path) -> Iterator[Buckets]:
    root = tmp_path / "buckets"
    for name in ("a.fq.gz", "b.fq.gz", "notes.txt", "deep/c.fq.gz", "with blank %41 ü.fq.gz"):
        write(root / "lab/run/reads" / name, name.encode() * 100)
    write(root / "lab/run/empty.txt", b"")
    with serving(Buckets(root)) as made:
        yield made


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(Web()) as made:
        yield made


class Machine:
    """One machine: an agent's folder, and a cache that may be another's."""

    def __init__(self, base: Path, buckets: Buckets | None = None, cache: Path | None = None) -> None:
        base.mkdir(exist_ok=True)
        self.base = base
        self.cache = Cache(cache or base / "inputs-cache")
        patience = Retry(0.5, wait=lambda s: None)
        self.delivery = Delivery(base, self.cache, Sources(buckets.options if buckets else {}), patience)
        self.scratch = base / "job" / "scratch"

    def ready(self, store: DictStore, *fetches: Fetch | str) -> None:
        self.delivery.ready(spec(*fetches), store)

    def begin(self, store: DictStore, *fetches: Fetch | str) -> dict[str, bytes]:
        """As a start from the beginning; what the job then finds, by path."""
        self.ready(store, *fetches)
        (self.scratch / "work").mkdir(parents=True, exist_ok=True)
        self.delivery.place(spec(*fetches), str(self.scratch))
        return self.found()

    def found(self) -> dict[str, bytes]:
        out = {}
        for link in sorted((self.scratch / "work").rglob("*")):
            if link.is_symlink():
                target = link.readlink().relative_to(self.base / "inputs")
                out[str(link.relative_to(self.scratch / "work"))] = (self.base / "job" / "inputs" / target).read_bytes()
        return out


def spec(*fetches: Fetch | str) -> Spec:
    return Spec(JOB, ["x"], fetches=[f if isinstance(f, Fetch) else Fetch(f) for f in fetches])


def pins(store: DictStore) -> Pins:
    return json_codec.decode(Pins, store.objects[object_keys.inputs_key(JOB)])


def trouble(what: str, machine: Machine, store: DictStore, *fetches: Fetch | str) -> str:
    with pytest.raises(InputTrouble) as e:
        machine.ready(store, *fetches)
    assert (e.value.what, e.value.kind) == (what, "refused" if what == "full" else "input")
    assert "\n" not in str(e.value)
    return str(e.value)


# ---------------------------------------------------------------- what arrives


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_objects_wildcards_and_folders_arrive_where_they_are_wanted(scheme: str, tmp_path: Path, buckets: Buckets) -> None:
    machine, store = Machine(tmp_path / "m", buckets), DictStore()
    root = f"{scheme}://lab/run/"
    got = machine.begin(
        store,
        root + "reads/*.fq.gz",
        Fetch(root + "reads/**", to="all"),
        root + "reads/deep/",
        Fetch(root + "empty.txt", to="none/here.txt"),
        Fetch(root + "reads/notes.txt", to="docs/"),
    )
    reads = ["a.fq.gz", "b.fq.gz", "with blank %41 ü.fq.gz"]
    inner = [*reads, "notes.txt", "deep/c.fq.gz"]
    expected = {n: n.encode() * 100 for n in reads} | {f"all/{n}": n.encode() * 100 for n in inner}
    expected |= {"deep/c.fq.gz": b"deep/c.fq.gz" * 100, "none/here.txt": b"", "docs/notes.txt": b"notes.txt" * 100}
    assert got == expected
    pinned = {p.path: (p.size, p.sha256) for p in pins(store).files}
    assert pinned == {n: (len(d), hashlib.sha256(d).hexdigest()) for n, d in expected.items()}


def test_files_are_read_only_and_their_times_are_the_same_everywhere(tmp_path: Path, buckets: Buckets) -> None:
    machine = Machine(tmp_path / "m", buckets)
    machine.ready(DictStore(), "s3://lab/run/reads/a.fq.gz")
    st = (machine.base / "job/inputs/a.fq.gz").stat()
    assert (st.st_mode & 0o777, st.st_mtime) == (0o444, 946_684_800)


def test_every_user_of_the_job_may_read_them(tmp_path: Path, buckets: Buckets) -> None:
    before = os.umask(0o077)  # as the agent's
    try:
        machine = Machine(tmp_path / "m", buckets)
        machine.begin(DictStore(), "s3://lab/run/reads/**")
    finally:
        os.umask(before)
    assert {p.stat().st_mode & 0o777 for p in (machine.scratch / "work").rglob("*") if p.is_dir()} == {0o755}
    view = machine.base / "job/inputs"
    modes = {p.stat().st_mode & 0o777 for p in [view.resolve(), *view.rglob("*")] if p.is_dir()}
    assert (modes, (view / "deep/c.fq.gz").stat().st_mode & 0o777) == ({0o755}, 0o444)


def test_a_file_from_the_web_with_its_checksum(tmp_path: Path, web: Web) -> None:
    data = os.urandom(3 << 20)
    web.files["/x/genome.fa?signature=abc"] = Mood(data)
    given = Fetch(web.url("/x/genome.fa?signature=abc"), sha256=hashlib.sha256(data).hexdigest().upper())
    assert Machine(tmp_path / "m").begin(DictStore(), given) == {"genome.fa": data}


@pytest.mark.parametrize("ranges", [True, False])
def test_a_large_file_that_is_cut_off_again_and_again_arrives(
    ranges: bool, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PART_BYTES", 1 << 20)
    monkeypatch.setattr(sources, "PIECE_BYTES", 1 << 16)
    data = os.urandom((5 << 20) + 77)
    web.files["/big"] = Mood(
        data, tag="", ranges=ranges, breaks=[400_000, 1, 900_000]
    )  # obstore alone goes on where there is a tag
    assert Machine(tmp_path / "m").begin(DictStore(), web.url("/big")) == {"big": data}
    assert not web.files["/big"].breaks
    assert any(begin % (1 << 20) for begin in web.begins) is ranges, "what came before the cut is not asked for again"


def test_an_older_version_where_the_job_file_names_the_present_one(tmp_path: Path, web: Web) -> None:
    web.files["/v"] = Mood(b"abc", tag='"v2"')
    assert Machine(tmp_path / "m").begin(DictStore(), Fetch(web.url("/v"), version="v2")) == {"v": b"abc"}
    said = trouble("version", Machine(tmp_path / "n"), DictStore(), Fetch(web.url("/v"), version="v1"))
    assert "v1" in said


# ---------------------------------------------------------------- once a machine


def test_three_jobs_of_one_machine_fetch_once(tmp_path: Path, buckets: Buckets) -> None:
    machines = [Machine(tmp_path / f"m{i}", buckets, tmp_path / "cache") for i in range(3)]
    for m in machines:
        assert len(m.begin(DictStore(), "s3://lab/run/reads/**")) == 5
    assert len(buckets.sent) == len(set(buckets.sent)) == 5
    inodes = {(m.base / "job/inputs/a.fq.gz").stat().st_ino for m in machines}
    assert len(inodes) == 1


def test_a_restore_on_the_same_machine_asks_nobody_and_elsewhere_brings_the_same(tmp_path: Path, buckets: Buckets) -> None:
    store, first = DictStore(), Machine(tmp_path / "m", buckets)
    first.ready(store, "s3://lab/run/reads/*")
    write(tmp_path / "buckets/lab/run/reads/new.fq.gz", b"not there when it began")
    before = len(buckets.sent)
    again = Machine(tmp_path / "m", buckets)  # the agent was started anew
    again.ready(store, "s3://lab/run/reads/*")
    assert len(buckets.sent) == before
    other = Machine(tmp_path / "n", buckets)
    other.ready(store, "s3://lab/run/reads/*")
    names = sorted(p.name for p in (other.base / "job/inputs").iterdir())
    assert names == ["a.fq.gz", "b.fq.gz", "notes.txt", "with blank %41 ü.fq.gz"]


def test_a_file_that_another_job_pushed_out_in_the_last_moment_is_fetched_again(
    tmp_path: Path, buckets: Buckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "buckets/lab/other.txt", b"other")
    store, machine = DictStore(), Machine(tmp_path / "m", buckets)
    wanted = ("s3://lab/other.txt", "s3://lab/run/reads/")
    machine.begin(store, *wanted)
    machine.delivery.drop()
    held = machine.cache.held

    def pushed_out(digest: str) -> bool:
        was = held(digest)
        for path in (machine.cache.folder / "objects").glob(f"??/{digest}"):
            path.unlink()
        return was

    monkeypatch.setattr(machine.cache, "held", pushed_out)
    machine.ready(store, *wanted)
    assert sorted(p.name for p in (machine.base / "job/inputs").rglob("*") if p.is_file())[0] == "a.fq.gz"
    assert (machine.base / "job/inputs/other.txt").read_bytes() == b"other"


def test_files_that_nobody_uses_make_room(tmp_path: Path, buckets: Buckets) -> None:
    machine = Machine(tmp_path / "m", buckets)
    machine.cache = machine.delivery.cache = Cache(tmp_path / "small", bytes_max=1500)
    machine.ready(DictStore(), "s3://lab/run/reads/a.fq.gz")
    machine.ready(DictStore(), "s3://lab/run/reads/notes.txt")  # 700 + 900 bytes: the first has to go
    kept = [p for p in (tmp_path / "small/objects").rglob("*") if p.is_file()]
    assert [p.stat().st_size for p in kept] == [900]


# ---------------------------------------------------------------- what is wrong


def test_an_input_that_changed_is_found_before_a_restore_with_both_values(tmp_path: Path, buckets: Buckets) -> None:
    store, source = DictStore(), tmp_path / "buckets/lab/run/reads/a.fq.gz"
    Machine(tmp_path / "m", buckets).ready(store, "s3://lab/run/reads/a.fq.gz")
    then = pins(store).files[0]
    source.write_bytes(b"x" * 701)
    said = trouble("changed", Machine(tmp_path / "n", buckets), store, "s3://lab/run/reads/a.fq.gz")
    assert "s3://lab/run/reads/a.fq.gz" in said
    assert "700" in said
    assert "701" in said
    assert len(buckets.sent) == 1, "what has another size need not be fetched"
    source.write_bytes(b"y" * 700)  # of the same size
    said = trouble("changed", Machine(tmp_path / "o", buckets), store, "s3://lab/run/reads/a.fq.gz")
    assert then.sha256 in said
    assert hashlib.sha256(b"y" * 700).hexdigest() in said
    source.write_bytes(b"a.fq.gz" * 100)  # written anew, with what was there
    Machine(tmp_path / "p", buckets).ready(store, "s3://lab/run/reads/a.fq.gz")
    source.unlink()
    trouble("absent", Machine(tmp_path / "q", buckets), store, "s3://lab/run/reads/a.fq.gz")
    Machine(tmp_path / "p", buckets).ready(store, "s3://lab/run/reads/a.fq.gz")  # who has it needs it no more


def test_of_two_first_starts_one_counts(tmp_path: Path, web: Web) -> None:
    """An attempt that was cut off after its pin, and a file that is another one for the next."""
    web.files["/f"] = Mood(b"one")
    store = DictStore()
    machine = Machine(tmp_path / "m")
    look = machine.delivery.sources.look

    def late(fetch: Fetch):  # type: ignore[no-untyped-def]
        seen = look(fetch)
        if object_keys.inputs_key(JOB) not in store.objects:
            other = DictStore()
            web.files["/f"] = Mood(b"two", '"two"')
            Machine(tmp_path / "other").ready(other, web.url("/f"))
            web.files["/f"] = Mood(b"one")
            store.objects.update(other.objects)
        return seen

    machine.delivery.sources.look = late  # type: ignore[method-assign]
    assert hashlib.sha256(b"two").hexdigest() in trouble("changed", machine, store, web.url("/f"))


SAID = {
    "absent": ("s3://lab/run/nothing.txt", "is not there"),
    "empty": ("s3://lab/run/*.bam", "nothing matches"),
    "absent bucket": ("s3://nothing/x/", "is not there"),
    "denied": ("s3://lab/run/reads/b.fq.gz", "refused to this machine (403)"),
    "denied with a number": ("s3://lab/run/468/b.fq.gz", "refused to this machine (403)"),
    "twice": ("s3://lab/run/reads/a.fq.gz", "both arrive as a.fq.gz"),
}


@pytest.mark.parametrize("what", SAID)
def test_one_sentence_each(what: str, tmp_path: Path, buckets: Buckets) -> None:
    buckets.denied = {"run/reads/b.fq.gz", "run/468/b.fq.gz"}
    source, words = SAID[what]
    more = ["s3://lab/run/reads/[a]*"] if what == "twice" else []
    assert words in trouble(what.partition(" ")[0], Machine(tmp_path / "m", buckets), DictStore(), source, *more)


def test_options_of_all_beginnings_that_fit_count(tmp_path: Path, buckets: Buckets) -> None:
    machine = Machine(tmp_path / "m", buckets)
    machine.delivery.sources.options = {**buckets.options, "s3://lab": {"endpoint": "http://127.0.0.1:1"}}
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        machine.ready(DictStore(), "s3://lab/run/reads/a.fq.gz")


@pytest.mark.parametrize("sent", ["notes.txt", "all"])
def test_what_was_sent_along_is_not_covered(sent: str, tmp_path: Path, buckets: Buckets) -> None:
    machine = Machine(tmp_path / "m", buckets)
    write(machine.scratch / "work" / sent, b"sent")
    with pytest.raises(InputTrouble, match="a file that was sent along would both arrive as"):
        machine.begin(DictStore(), "s3://lab/run/reads/notes.txt", Fetch("s3://lab/run/reads/", to="all"))
    assert (machine.scratch / "work" / sent).read_bytes() == b"sent"


def test_a_wrong_checksum_names_both_and_nothing_stays(tmp_path: Path, web: Web) -> None:
    web.files["/f"] = Mood(b"abc")
    machine = Machine(tmp_path / "m")
    said = trouble("checksum", machine, DictStore(), Fetch(web.url("/f"), sha256="0" * 64))
    assert "0" * 64 in said
    assert hashlib.sha256(b"abc").hexdigest() in said
    assert not [p for p in (machine.cache.folder).rglob("*") if p.is_file() and p.stat().st_size == 3]


def test_a_server_that_is_silent_is_waited_for_and_then_said(tmp_path: Path, web: Web) -> None:
    web.files["/f"] = Mood(b"abc", status=503)
    with pytest.raises(Unreachable, match=r"can't be reached.*503"):
        Machine(tmp_path / "m").ready(DictStore(), web.url("/f"))


def test_a_full_disk_is_said_before_anything_is_fetched(tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files["/f"] = Mood(b"abc" * 1000)
    machine = Machine(tmp_path / "m")
    monkeypatch.setattr(Cache, "_free", lambda self: 2000)
    said = trouble("full", machine, DictStore(), web.url("/f"))
    assert "3000 bytes more, 2000 are free" in said
    monkeypatch.undo()
    machine.ready(store := DictStore(), web.url("/f"))
    monkeypatch.setattr(Cache, "_free", lambda self: -1)
    Machine(tmp_path / "m").ready(store, web.url("/f"))  # what is here needs no room


def test_a_disk_that_fills_up_midway_is_said_and_nothing_half_stays(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files = {f"/{i}": Mood(os.urandom(1000)) for i in range(20)}
    machine, pwrite, left = Machine(tmp_path / "m"), os.pwrite, [8000]

    def full(fd: int, data: bytes, at: int) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    said = trouble("full", machine, DictStore(), *(web.url(f"/{i}") for i in range(20)))
    assert "20000 bytes more" in said
    kept = {p.name: p.read_bytes() for p in (machine.cache.folder / "objects").glob("??/*")}
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in kept.items())
    assert not list((machine.cache.folder / "partial").iterdir())


def test_who_is_not_wanted_any_more_stops_in_the_middle(tmp_path: Path, web: Web) -> None:
    web.files = {f"/{i}": Mood(os.urandom(1 << 20)) for i in range(40)}
    machine = Machine(tmp_path / "m")

    def halt() -> None:
        if machine.delivery.done_bytes > 4 << 20:
            raise FenceClosed("not wanted")

    wanted = spec(*(web.url(f"/{i}") for i in range(40)))
    with pytest.raises(FenceClosed):
        machine.delivery.ready(wanted, DictStore(), halt)
    assert machine.delivery.done_bytes < 30 << 20
    assert not list((machine.cache.folder / "partial").iterdir())
