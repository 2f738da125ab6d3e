"""A folder goes to a job's machine and comes home: what is sent, laid out, brought back, and what is never overwritten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from spotsurfer_agent.files import home_folder
from spotsurfer_agent.files.staging import FilesError
from spotsurfer_wire import home_tree, json_codec, object_keys
from spotsurfer_wire.home_tree import FILE, FOLDER, GONE, LINK, HomeChange, HomeChanges, HomeEntry, HomeTree
from support.home_world import OWNER, HomeWorld, shown

from spotsurfer.home import at_home, deliver
from spotsurfer.home.arrival import Act, Here, plan
from spotsurfer.model.errors import InputMissing, JobFileError


@pytest.fixture
def world(tmp_path: Path) -> HomeWorld:
    made = HomeWorld(tmp_path)
    (made.home / "in").mkdir()
    (made.home / "in/reads.fq").write_text("ACGT")
    (made.home / "in/reads.fq").chmod(0o640)
    os.utime(made.home / "in/reads.fq", ns=(10**18, 10**18 + 7))
    (made.home / "run.sh").write_text("#!/bin/sh\n")
    (made.home / "run.sh").chmod(0o755)
    (made.home / "latest").symlink_to("in/reads.fq")
    (made.home / ".git").mkdir()
    (made.home / ".git/HEAD").write_text("x")
    return made


def home_again(world: HomeWorld, job: str = "j1") -> list[str]:
    done = deliver(world.client, book=world.book())
    assert done.troubles == {}
    assert at_home(job, world.book())
    return world.book().jobs([job])[0].told


def test_it_is_laid_out_as_it_was_with_modes_times_and_links(world: HomeWorld) -> None:
    world.submit("j1")
    seen: list[dict[str, object]] = []
    world.run("j1", lambda work: seen.append({**shown(work), "mtime": (work / "in/reads.fq").stat().st_mtime_ns}))
    assert seen == [
        {
            "in": None,
            "in/reads.fq": ("ACGT", 0o640),
            "run.sh": ("#!/bin/sh\n", 0o755),
            "latest": "-> in/reads.fq",
            "mtime": 10**18 + 7,
        }
    ]
    changes = json_codec.decode(HomeChanges, world.store.objects[object_keys.home_changes_key("j1", 1)])
    assert changes == HomeChanges(), "what a job leaves alone does not come home"


def test_the_second_job_of_a_folder_sends_nothing(world: HomeWorld) -> None:
    world.submit("j1")
    assert len(world.sent) == 3, "two files and the tree"
    world.submit("j2")
    assert len(world.sent) == 3
    (world.home / "new.txt").write_text("new")
    world.submit("j3")
    assert len(world.sent) == 5


def test_a_log_that_grows_while_it_is_sent_is_sent_as_it_was_and_a_rewritten_file_again(world: HomeWorld) -> None:
    (world.home / "run.log").write_text("begun\n")
    wrote: list[str] = []

    def write(what: str) -> None:
        wrote.append(what)
        if what.startswith("PUT"):
            with (world.home / "run.log").open("a") as file:
                file.write("more\n")
        if len(wrote) == 1:  # the folder was listed, and nothing was sent yet
            (world.home / "in/reads.fq").write_text("TTTT")
            (world.home / "run.sh").write_text("#!/bin/no")

    world.before = write
    world.submit("j1")
    seen: list[dict[str, object]] = []
    world.run("j1", lambda work: seen.append(shown(work)))
    assert str(seen[0]["run.log"]).startswith("('begun\\n")
    assert (seen[0]["in/reads.fq"], seen[0]["run.sh"]) == (("TTTT", 0o640), ("#!/bin/no", 0o755))


def work_of_all_kinds(work: Path) -> None:
    (work / "in/reads.fq").write_text("ACGTACGT")
    (work / "run.sh").unlink()
    (work / "out/deep").mkdir(parents=True)
    (work / "out/deep/result").write_text("42")
    (work / "out/deep/result").chmod(0o600)
    (work / "out/link").symlink_to("deep/result")
    (work / "latest").unlink()
    (work / "latest").mkdir()
    (work / "latest/is").write_text("a folder now")
    (work / ".git").mkdir()
    (work / ".git/index").write_text("stays there")


HOME_THEN = {
    ".git": None,
    ".git/HEAD": ("x", 0o644),
    "in": None,
    "in/reads.fq": ("ACGTACGT", 0o640),
    "latest": None,
    "latest/is": ("a folder now", 0o644),
    "out": None,
    "out/deep": None,
    "out/deep/result": ("42", 0o600),
    "out/link": "-> deep/result",
}


def test_what_it_made_changed_and_removed_comes_home(world: HomeWorld) -> None:
    world.submit("j1")
    world.run("j1", work_of_all_kinds)
    assert home_again(world) == []
    assert shown(world.home) == HOME_THEN


def test_what_changed_at_home_meanwhile_stays_and_the_jobs_is_beside_it(world: HomeWorld) -> None:
    world.submit("j1")
    (world.home / "in/reads.fq").write_text("mine")
    (world.home / "run.sh").write_text("mine, too")
    (world.home / "out").write_text("in the way")
    world.run("j1", work_of_all_kinds)
    told = home_again(world)
    found = shown(world.home)
    assert found["in/reads.fq"] == ("mine", 0o640)
    assert found["in/reads.fq.from-j1"] == ("ACGTACGT", 0o640)
    assert found["run.sh"] == ("mine, too", 0o755)
    assert found["out"] == ("in the way", 0o644)
    assert found["out.from-j1/deep/result"] == ("42", 0o600)
    assert {line.partition(" ")[0] for line in told} == {"run.sh", "in/reads.fq", "out"}


def test_of_two_jobs_that_write_one_file_the_second_is_told_of(world: HomeWorld) -> None:
    world.submit("j1")
    world.submit("j2")
    for job in ("j1", "j2"):
        world.run(job, lambda work, job=job: (work / "all.log").write_text(f"of {job}"))  # type: ignore[misc]
    home_again(world)
    assert (world.home / "all.log").read_text() == "of j1"
    assert (world.home / "all.log.from-j2").read_text() == "of j2"
    assert world.book().jobs(["j2"])[0].told == ["all.log changed here meanwhile: the job's is all.log.from-j2 beside it"]


def test_two_jobs_that_write_the_same_are_no_conflict(world: HomeWorld) -> None:
    world.submit("j1")
    world.submit("j2")
    for job in ("j1", "j2"):
        world.run(job, lambda work: (work / "same").write_text("same"))  # type: ignore[arg-type, return-value]
    home_again(world)
    assert world.book().jobs(["j2"])[0].told == []


def test_a_file_that_was_not_sent_is_overwritten_only_if_it_is_older_than_the_job(world: HomeWorld) -> None:
    (world.home / "result").write_text("of yesterday")
    world.submit("j1", home_files=("run.sh",))
    (world.home / "fresh").write_text("of the user")

    def work(folder: Path) -> None:
        assert sorted(x.name for x in folder.iterdir()) == ["run.sh"]
        (folder / "result").write_text("of today")
        (folder / "fresh").write_text("of the job")

    world.run("j1", work)
    told = home_again(world)
    assert (world.home / "result").read_text() == "of today"
    assert (world.home / "fresh").read_text() == "of the user"
    assert len(told) == 1


def test_what_came_another_way_or_can_not_come_stays_on_the_machine(world: HomeWorld) -> None:
    world.submit("j1", folder="in", inputs=("params.json",))

    def work(folder: Path) -> None:
        (folder / "in/params.json").write_text("sent along")
        (folder / "in/genome.fa").symlink_to(world.path.parent / "inputs/genome.fa")
        os.mkfifo(folder / "pipe")
        (folder / os.fsdecode(b"no-text-\xff")).write_text("x")

    world.run("j1", work)
    told = home_again(world)
    assert sorted(line.partition(" ")[0] for line in told) == ["'no-text-\\\\udcff'", "'pipe'"]
    assert sorted(x.name for x in (world.home / "in").iterdir()) == ["reads.fq"]


@pytest.mark.parametrize(
    ("e", "why"),
    [
        (HomeEntry("../evil", FILE, 0o644), "no path below"),
        (HomeEntry("/etc/evil", FILE, 0o644), "no path below"),
        (HomeEntry("a/../../evil", FILE, 0o644), "no path below"),
        (HomeEntry("", FILE, 0o644), "no path below"),
        (HomeEntry("dev", "device", 0o644), "no path below"),
        (HomeEntry("out", LINK, target="/etc"), "leads out"),
        (HomeEntry("in/out", LINK, target="../../x"), "leads out"),
        (HomeEntry("in/out", LINK, target="later/../../x"), "leads out"),
        (HomeEntry("in/out", LINK, target="later/../reads.fq"), "leads out"),  # "later" may become a link
        (HomeEntry("new/out", LINK, target="/home/../etc"), "leads out"),
        (HomeEntry("../../evil", GONE), "no path below"),
    ],
)
def test_a_machine_can_write_nowhere_else(world: HomeWorld, e: HomeEntry, why: str) -> None:
    world.submit("j1")
    before = shown(world.path)
    listed = json_codec.encode(HomeChanges([HomeChange(e, e if e.kind == GONE else None)]))
    world.store.put(object_keys.home_changes_key("j1", 1), listed)
    world.jobs["j1"]["state"] = "failed"
    told = home_again(world)
    assert len(told) == 1
    assert why in told[0]
    assert {k: v for k, v in shown(world.path).items() if not k.startswith("state")} == {
        k: v for k, v in before.items() if not k.startswith("state")
    }


def test_a_link_of_the_users_own_that_leads_out_goes_along_as_what_it_is(world: HomeWorld, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/big").write_text("big")
    (world.home / "data").symlink_to(tmp_path / "data")
    (world.home / "loop").symlink_to("..")
    world.submit("j1", home_files=("data",))

    def work(folder: Path) -> None:
        assert (folder / "data/big").read_text() == "big"
        (folder / "data/new").write_text("new")

    world.run("j1", work)
    assert home_again(world) == []
    assert (tmp_path / "data/new").read_text() == "new", "it is the user's link: what is behind it is theirs"


@pytest.mark.parametrize(
    "entries",
    [
        [HomeEntry("a", LINK, target="/etc"), HomeEntry("a/passwd", FILE, 0o644)],
        [HomeEntry("../a", FILE, 0o644)],
        [HomeEntry("a", FOLDER, 0o755), HomeEntry("a", FILE, 0o644)],
        [HomeEntry("a/b", FILE, 0o644)],
        [HomeEntry("a", GONE)],
    ],
)
def test_an_agent_lays_out_no_tree_that_leaves_its_folder(world: HomeWorld, entries: list[HomeEntry]) -> None:
    assert home_tree.problem(HomeTree(entries))
    spec = world.submit("j1")
    key = object_keys.home_file_key(object_keys.home_scope(OWNER, spec.home), spec.home_tree)
    with pytest.raises(FilesError, match="can't be read"):  # nor one that is not the one that was submitted
        world.store.put(key, json_codec.encode(HomeTree(entries)))
        home_folder.place(world.store, world.wire("j1"), str(world.path / "s"))


def test_a_damaged_file_is_laid_out_nowhere(world: HomeWorld) -> None:
    world.submit("j1")
    for key, data in world.store.objects.items():
        if data == b"ACGT":
            world.store.objects[key] = b"ACGA"
    with pytest.raises(FilesError, match="damaged"):
        world.run("j1", lambda _: None)


def test_names_and_sizes_are_bounded_and_the_remedy_is_said(world: HomeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotsurfer.home.folder.FILES_MAX", 3)
    with pytest.raises(JobFileError, match="more than 3 names: name what the job needs"):
        world.submit("j1")
    monkeypatch.setattr("spotsurfer.home.folder.FILES_MAX", 300)
    monkeypatch.setattr("spotsurfer.home.folder.BYTES_MAX", 5)
    with pytest.raises(JobFileError, match=r"more than .*home_exclude"):
        world.submit("j1")
    with pytest.raises(InputMissing, match="absent is not there"):
        world.submit("j1", home_files=("absent",))
    with pytest.raises(JobFileError, match="not in"):
        world.submit("j1", home_files=("../x",))


OLD, NEW = HomeEntry("f", FILE, 0o644, 5, 3, "old"), HomeEntry("f", FILE, 0o644, 9, 3, "new")


@pytest.mark.parametrize(
    ("now", "was", "here", "act"),
    [
        (NEW, OLD, Here(FILE, 0o644, 3, 5, 0), Act.PUT),  # as it was sent
        (NEW, OLD, Here(FILE, 0o644, 3, 6, 0, sha256="old"), Act.PUT),  # touched, the same bytes
        (NEW, OLD, Here(FILE, 0o644, 4, 6, 0), Act.BESIDE),
        (NEW, OLD, None, Act.PUT),  # removed here: the result is kept
        (NEW, OLD, Here(FILE, 0o644, 3, 9, 0), Act.NOTHING),  # placed before
        (NEW, OLD, Here(FILE, 0o600, 3, 7, 0, sha256="new"), Act.DRESS),
        (NEW, None, None, Act.PUT),
        (NEW, None, Here(FILE, 0o644, 4, 6, 50), Act.PUT),  # older than the job
        (NEW, None, Here(FILE, 0o644, 4, 6, 150), Act.BESIDE),
        (NEW, None, Here(FOLDER, ctime_ns=50), Act.BESIDE),
        (HomeEntry("f", GONE), OLD, Here(FILE, 0o644, 3, 5, 0), Act.REMOVE),
        (HomeEntry("f", GONE), OLD, Here(FILE, 0o644, 3, 6, 0, sha256="x"), Act.KEEP),
        (HomeEntry("f", GONE), OLD, None, Act.NOTHING),
        (HomeEntry("f", LINK, target="a"), OLD, Here(LINK, target="a"), Act.NOTHING),
        (HomeEntry("f", LINK, target="a"), OLD, Here(LINK, target="b"), Act.BESIDE),
        (HomeEntry("f", FOLDER, 0o755), None, Here(FOLDER), Act.NOTHING),
    ],
)
def test_what_is_done_with_a_name(now: HomeEntry, was: HomeEntry | None, here: Here | None, act: Act) -> None:
    assert plan(HomeChange(now, was), here, 100) is act
