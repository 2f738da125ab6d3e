"""Job files: every key, the files that go along, the lines of mistakes. More mistakes: cli/test_bad_input.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotsurfer.common.input_errors import line_of
from spotsurfer.jobspec.keys import KEYS
from spotsurfer.jobspec.parse import read_jobfile
from spotsurfer.jobspec.uploads import InputFile, expand
from spotsurfer.model.errors import InputMissing, JobFileError
from spotsurfer.model.job import JobSpec, MarketChoice

FULL = """
name = "assembly"
command = ["sh", "-c", "megahit -t 2 -r reads/*.fq -o contigs"]
folder = "work"
inputs = ["reads", "genome.fa"]
outputs = ["contigs/*.fa"]
user = "nobody"
market = "on-demand"
checkpoint_interval = "10m"
retries = 2
budget_usd = "1.50"
on_end = "notify --job"

[environment]
THREADS = 4
FAST = true

[tags]
project = "e-coli"

[resources]
cpu = 2
memory = "4GiB"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


def test_every_key_arrives(tmp_path: Path) -> None:
    (tmp_path / "reads" / "deep").mkdir(parents=True)
    (tmp_path / "reads" / "a.fq").write_text("A")
    (tmp_path / "reads" / "deep" / ".b.fq").write_text("BB")
    (tmp_path / "genome.fa").write_text("CCC")
    (tmp_path / "genome.fa").chmod(0o755)
    request = read_jobfile(write(tmp_path, FULL))
    assert request.spec == JobSpec(
        name="assembly",
        command=("sh", "-c", "megahit -t 2 -r reads/*.fq -o contigs"),
        folder="work",
        inputs=("reads", "genome.fa"),
        outputs=("contigs/*.fa",),
        cpus=2,
        memory_bytes=4 << 30,
        market=MarketChoice.ON_DEMAND,
        checkpoint_interval_seconds=600.0,
        retries=2,
        environment={"THREADS": "4", "FAST": "true"},
        tags={"project": "e-coli"},
        user="nobody",
        budget_usd_micros=1_500_000,
        on_end=("notify", "--job"),
    )
    assert [(f.path, f.size) for f in request.inputs] == [("genome.fa", 3), ("reads/a.fq", 1), ("reads/deep/.b.fq", 2)]
    assert request.modes["genome.fa"] == 0o755


def test_the_reference_of_keys_is_complete() -> None:
    import dataclasses

    assert {key.field for key in KEYS.values()} | {"fetches", "home_tree"} == {f.name for f in dataclasses.fields(JobSpec)}


def test_a_size_policy_its_bounds_and_parameters(tmp_path: Path) -> None:
    text = """command = "prog"
[size]
policy = "surf"
memory_max = "8G"
cpu_max = 4
parameters = { stretch = 1.1 }
"""
    spec = read_jobfile(write(tmp_path, text)).spec
    assert (spec.size_policy, spec.size_memory_max_bytes, spec.size_cpus_max) == ("surf", 8 << 30, 4)
    assert spec.size_parameters == {"stretch": 1.1}
    for wrong, said in (
        ('memory_max = "512M"', "less than resources.memory"),
        ("cpu_min = 2", "at most resources.cpu, 1"),
        ("parameters = { stretch = 1.1 }", "name it"),
        ('police = "surf"', "unknown key"),
    ):
        with pytest.raises(JobFileError, match=said):
            read_jobfile(write(tmp_path, f'command = "prog"\n[size]\n{wrong}\n'))


def test_a_text_is_split_into_words_and_never_given_to_a_shell(tmp_path: Path) -> None:
    request = read_jobfile(write(tmp_path, """command = "prog 'a b' $HOME; rm *" """))
    assert request.spec.command == ("prog", "a b", "$HOME;", "rm", "*")
    assert request.spec.name == "job"


def test_inputs_from_elsewhere_arrive_under_their_last_name(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "ref").mkdir(parents=True)
    here.mkdir()
    (there / "x.fq").write_text("1")
    (there / "ref" / "y").write_text("2")
    files = expand([str(there / "x.fq"), "../there/ref"], here, "w")
    assert [f.path for f in files] == ["ref/y", "x.fq"]
    (here / "x.fq").write_text("3")
    with pytest.raises(JobFileError, match=r"both arrive as 'x\.fq'"):
        expand([str(there / "x.fq"), "x.fq"], here, "w")


def test_the_same_file_twice_is_sent_once(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("1")
    assert [f.path for f in expand(["d", "d/x", "d/*", "**/x", "."], tmp_path, "w")] == ["d/x"]


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "real").write_text("12345")
    (tmp_path / "d" / "link").symlink_to("../real")
    (tmp_path / "d" / "up").symlink_to("..")
    files = {f.path: f.size for f in expand(["d"], tmp_path, "w")}
    assert files["d/link"] == 5
    (tmp_path / "d" / "dead").symlink_to("nowhere")
    with pytest.raises(InputMissing, match="dead"):
        expand(["d"], tmp_path, "w")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputMissing, match="no regular file"):
        expand(["pipe"], tmp_path, "w")


def test_brackets_in_a_name_are_a_name_first(tmp_path: Path) -> None:
    (tmp_path / "a[1].fq").write_text("x")
    assert expand(["a[1].fq"], tmp_path, "w") == [InputFile("a[1].fq", tmp_path / "a[1].fq", 1, 0o644)]


@pytest.mark.parametrize(
    "line", ["environment = 3", "tags = ['a']", "resources = 4", "on_end = 5", "folder = ''", "outputs = 7"]
)
def test_wrong_kinds_are_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(JobFileError, match=rf"job\.toml line 2: {line.split()[0]} is "):
        read_jobfile(write(tmp_path, f'command = "prog"\n{line}\n'))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (["a"], 1),
        (["t", "x"], 4),
        (["t", "u", "y"], 6),
        (["q r"], None),
        (["t", "q r"], 10),
        (["t", "none"], 3),
        (["d", "e"], 2),
        (["m"], None),
    ],
)
def test_lines_of_keys(path: list[str], line: int | None) -> None:
    text = 'a = 1\nd.e = 2\n[t]\nx = 3\n[t.u]\ny = { z = 1 }\n[t]\ns = """\nm = 4"""\n"q r" = 5\n'
    assert line_of(text, path) == line


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.toml")
        path.write_bytes(text.encode(errors="surrogatepass"))
        try:
            assert read_jobfile(path).spec.command
        except (JobFileError, InputMissing) as e:
            assert str(path) in str(e)


@given(st.text(), st.lists(st.text(max_size=5), min_size=1, max_size=3))
def test_no_text_breaks_the_scanner_of_lines(text: str, path: list[str]) -> None:
    line = line_of(text, path)
    assert line is None or 1 <= line <= len(text.splitlines())


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ('engine = "crio"', "Did you mean"),
        ('engine = "app"', "nothing tells the program to save itself"),
        ('tcp = "open"', "tcp is 'open'"),
        ('[resources]\nout_of_memory = "die"', "resources.out_of_memory is 'die'"),
        ('cpu = "x86-64-v9"', "cpu is"),
        ('hook_limit = "2h"', "hook_limit is 7200 seconds"),
        ('[app]\nsignal = "USR1"', "nothing says when it has"),
        ('[app]\nsignal = "KILL"\ndone_exit = 0', "app.signal is 'KILL'"),
        ('[app]\nsignal = "USR1"\nfile = "x"\ndone_exit = 0', "one way too many"),
        ('[app]\nfile = "x"\ndone_exit = 0\ndone_file = "y"', "one sign too many"),
        ('[app]\ndone_file = "x"', "nothing asks it to"),
        ('[app]\nfile = "../x"\ndone_exit = 0', "leaves the job's folder"),
        ('[app]\nfile = "x"\ndone_exit = 300', "expected an exit code"),
        ('[app]\nfile = "x"\ndone_output = "("', "no regular expression"),
        ('[app]\nfile = "x"\nwhat = 1', "unknown key"),
        ("app = 3", "expected a table: [app]"),
        ('[app]\nsignal = "USR1"\ndone_file = "x"', ""),
        ('[app]\ncommand = "save.sh"', ""),
    ],
)
def test_how_a_job_is_saved_is_checked_as_a_whole(tmp_path: Path, lines: str, told: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text('command = "x"\n' + lines + "\n")
    if not told:
        assert read_jobfile(path).spec.saves_itself
        return
    with pytest.raises(JobFileError) as e:
        read_jobfile(path)
    assert told in str(e.value)
