"""Every command against the real API over a Unix socket."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli.conftest import Call
from spotsurfer_wire.final_save_forecast import Prospect
from spotsurfer_wire.log_pieces import Row
from spotsurfer_wire.messages import StepRun
from support.fake_service import FakeService, an_attempt

from spotsurfer.model.actions import Preview
from spotsurfer.model.errors import Conflict, NotFound
from spotsurfer.model.job import JobId, JobState, JobStep, MarketChoice
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.ports.clock import SystemClock
from spotsurfer.ports.service import Foretold


def test_options_make_the_job_they_say(controller: FakeService, call: Call, folder: Path) -> None:
    (folder / "reads.fq").write_bytes(b"ACGT")
    (folder / "reads.fq").chmod(0o640)
    result = call(
        *("submit", "--json", "--name", "asm", "--cpu", "2", "--mem", "4G", "--in", "reads.fq", "--out", "*.fa"),
        *("--env", "A=b=c", "--tag", "who=me", "--market", "spot", "--interval", "10m", "--retries", "2", "--budget", "1.5"),
        *("--", "sh", "-c", "cat reads.fq > x.fa", "--wait"),
    )
    assert result.code == 0, result.err
    spec = controller.statuses[json.loads(result.out)["id"]].job.spec
    assert spec.command == ("sh", "-c", "cat reads.fq > x.fa", "--wait")
    assert (spec.name, spec.cpus, spec.memory_bytes, spec.market) == ("asm", 2, 4 << 30, MarketChoice.SPOT)
    assert (spec.environment, spec.tags, spec.outputs) == ({"A": "b=c"}, {"who": "me"}, ("*.fa",))
    assert (spec.checkpoint_interval_seconds, spec.retries, spec.budget_usd_micros) == (600.0, 2, 1_500_000)
    assert list(controller.uploads.values()) == [{"reads.fq": b"ACGT"}]
    assert list(controller.modes.values()) == [{"reads.fq": 0o640}]


def test_a_job_file_and_options_that_win(controller: FakeService, call: Call, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "in.txt").write_text("x")
    (folder / "sub" / "asm.toml").write_text(
        'command = "prog in.txt"\ninputs = ["in.txt"]\n[resources]\ncpu = 1\nmemory = "1G"\n'
    )
    result = call("submit", "sub/asm.toml", "--cpu", "3", "--json")
    assert result.code == 0, result.err
    spec = controller.statuses[json.loads(result.out)["id"]].job.spec
    assert (spec.name, spec.command, spec.cpus, spec.memory_bytes) == ("asm", ("prog", "in.txt"), 3, 1 << 30)
    assert list(controller.uploads.values()) == [{"in.txt": b"x"}]


def test_an_address_stays_what_it_is_and_a_path_is_where_the_user_stands(
    call: Call, controller: FakeService, folder: Path
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/asm.toml").write_text('command = ["prog"]\n')
    (folder / "reads.fq").write_text("x")
    result = call("submit", "sub/asm.toml", "--in", "s3://lab/ref/", "--in", "reads.fq", "--json")
    spec = json.loads(result.out)["spec"]
    assert [f["source"] for f in spec["fetches"]] == ["s3://lab/ref/"]
    assert spec["inputs"] == [str(folder / "reads.fq")]


def test_a_submission_that_fails_leaves_nothing(controller: FakeService, call: Call, folder: Path) -> None:
    (folder / "a").write_text("x")
    controller.submit = None  # type: ignore[assignment,method-assign] - the last step breaks
    result = call("submit", "--in", "a", "--", "prog")
    assert result.code == 1
    assert controller.uploads == {}
    assert len(controller.discarded) == 1


def test_list(job: str, call: Call) -> None:
    result = call("list")
    assert result.code == 0
    assert f"{job}" in result.out
    assert "running" in result.out
    assert "m6i.large spot" in result.out
    assert "0.0123" in result.out
    assert [x["id"] for x in json.loads(call("list", "--json").out)] == [job]


def test_list_leaves_ended_jobs_out_if_asked(job: str, controller: FakeService, call: Call) -> None:
    controller.end(job, JobState.SUCCEEDED, 0)
    assert json.loads(call("list", "--open", "--json").out) == []
    assert "No jobs" in call("list", "--open").out


def test_show_and_why(job: str, call: Call) -> None:
    shown = call("show", "asm")
    assert shown.code == 0
    assert "prog --json -x" in shown.out
    assert "42s of work since the newest checkpoint" in shown.out
    named = [re.match(r"[a-z]+( [a-z]+)? {2,}", line) for line in shown.out.partition("\n\n")[0].splitlines()]
    assert len({found and found.end() for found in named}) == 1, "all values begin in one column"
    assert "saved every 12 min: for a reason" in shown.out
    told = json.loads(call("show", job, "--json").out)["attempts"][0]
    assert (told["zone"], told["pace_seconds"]) == ("local-a", 720.0)
    assert "\nc6i.large  4 GiB is too little\n" in call("why", job).out
    assert json.loads(call("why", job, "--json").out)[0]["rejected"][0]["what"] == "c6i.large"


def test_show_tells_what_notices_would_do(job: str, controller: FakeService, call: Call) -> None:
    def shown(*foretold: Foretold) -> str:
        status = controller.statuses[job]
        attempts = [replace(a, foretold=foretold) for a in status.attempts]
        controller.statuses[job] = replace(status, attempts=attempts)
        return " ".join(call("show", job).out.split())

    assert "if taken" not in shown()
    saved, lost = Foretold(120.0, Prospect.SAVED, 0.0, measured=True), Foretold(0.0, Prospect.LOST, 42.0, measured=True)
    tried = Foretold(30.0, Prospect.TRIED, 72.0, measured=True)
    assert (
        "if taken with 120 s of notice it is saved in time; with 30 s of notice it may be saved in time: if not, "
        "up to 1m12s of work is repeated; without notice up to 42s of work is repeated"
    ) in shown(saved, tried, lost)
    assert "assumed" in shown(replace(saved, measured=False))
    assert "the work since its newest checkpoint is repeated" in shown(replace(lost, lost_seconds=None))
    told = json.loads(call("show", job, "--json").out)["attempts"][-1]["foretold"]
    assert told == [{"notice_seconds": 0.0, "outcome": "lost", "lost_seconds": None, "measured": True}]


def test_show_tells_what_the_name_of_an_image_is_pinned_to(job: str, controller: FakeService, call: Call) -> None:
    pinned, status = "sha256:" + "ab" * 32, controller.statuses[job]
    spec = replace(status.job.spec, image="docker://registry.example/tool:1")
    named = controller.statuses[job] = replace(status, job=replace(status.job, spec=spec))
    assert "docker://registry.example/tool:1" in " ".join(call("show", job).out.split())
    assert "pinned" not in call("show", job).out, "nobody has asked yet"
    controller.statuses[job] = replace(named, image_digest=pinned)
    assert f"docker://registry.example/tool:1, pinned to {pinned}" in " ".join(call("show", job).out.split())
    assert json.loads(call("show", job, "--json").out)["image_digest"] == pinned


def test_show_says_how_long_moves_stopped_it(job: str, controller: FakeService, call: Call) -> None:
    def moved(*pauses: float) -> str:
        attempts = [controller.status(replace(an_attempt(JobId(job), n), pause_seconds=p)) for n, p in enumerate(pauses, 1)]
        controller.statuses[job] = replace(controller.statuses[job], attempts=attempts)
        return " ".join(call("show", job).out.split())

    assert "pauses its move stopped it for 13.5 s" in moved(13.5)
    assert "its moves stopped it for 43.5 s in all, the last for 14.5 s, the longest for 15.5 s" in moved(13.5, 15.5, 14.5)


def test_show_marks_a_checkpoint_that_could_not_be_restored(job: str, controller: FakeService, call: Call) -> None:
    why = "attempt 2 on m6i.large could not restore it: a chunk is damaged"
    controller.statuses[job] = replace(controller.statuses[job], checkpoint="000001-000003", checkpoint_failed=why)
    assert "000001-000003; machine #2 on m6i.large could not restore it: a chunk is damaged" in " ".join(
        call("show", job).out.split()
    )
    assert json.loads(call("show", job, "--json").out)["checkpoint_failed"] == why


def test_watch_ends_with_the_job(job: str, controller: FakeService, call: Call) -> None:
    controller.say(job, "saved", "a checkpoint \x1b[31mred")
    controller.end(job, JobState.SUCCEEDED, 0)
    result = call("watch", job)
    assert result.code == 0
    assert [line.split()[4] for line in result.out.splitlines()] == ["Submitted:", "Saved:", "Finished"]
    assert "\x1b" not in result.out, "a job may not steer the terminal"
    lines = [json.loads(line) for line in call("watch", job, "--json").out.splitlines()]
    assert [m["kind"] for m in lines] == ["submitted", "saved", "ended"]


def test_logs_keep_streams_apart(job: str, controller: FakeService, call: Call) -> None:
    controller.logs[job, "out"], controller.logs[job, "err"] = b"data\n", b"talk\n"
    both = call("logs", job)
    assert (both.out, both.err.splitlines()[1:]) == ("data\n", ["talk"])
    assert "older agent did not record in which order" in both.err
    assert call("logs", "--stderr", job).out == "talk\n"
    told = json.loads(call("logs", "--json", job).out)
    assert (told["stdout"], told["stderr"]) == ("data\n", "talk\n")
    assert json.loads(call("logs", "--json", "--stderr", job).out)["pieces"] == [
        {"stream": "stderr", "time": None, "text": "talk\n"}
    ]


def test_logs_follow_to_the_end(job: str, controller: FakeService, call: Call) -> None:
    controller.logs[job, "out"] = b"one\n"

    def later() -> None:
        controller.logs[job, "out"] += b"two\n"
        controller.end(job, JobState.SUCCEEDED, 0)

    threading.Timer(0.7, later).start()
    result = call("logs", "-f", "--stdout", job)
    assert (result.code, result.out) == (0, "one\ntwo\n")


def recorded(controller: FakeService, job: str, *printed: tuple[float, str, str]) -> None:
    """At these times the job printed this on these streams."""
    length, record, begin = {"out": 0, "err": 0}, Row(1, 0, 0).packed(), 1_700_000_000
    controller.logs[job, "out"] = controller.logs[job, "err"] = b""
    for seconds, stream, text in printed:
        controller.logs[job, stream] += text.encode()
        length[stream] += len(text.encode())
        record += Row(int((begin + seconds) * 1000), length["out"], length["err"]).packed()
    controller.logs[job, "times"] = record


LINES = [(0, "out", "1\n"), (10, "err", "2\n"), (20, "err", "3\n"), (30, "out", "4\n"), (40, "err", "5ä\n"), (50, "out", "6\n")]


def pieces(answer: str) -> str:
    """All that was printed, in its order."""
    return "".join(x["text"] for x in json.loads(answer)["pieces"]).replace("\n", "")


def test_logs_in_the_order_in_which_they_were_printed(job: str, controller: FakeService, call: Call) -> None:
    """It printed all of stdout, then all of stderr."""
    recorded(controller, job, *LINES)
    told = json.loads(call("logs", "--json", job).out)
    assert [x["stream"][3:] for x in told["pieces"]] == ["out", "err", "err", "out", "err", "out"]
    assert told["pieces"][0]["time"] == "2023-11-14T22:13:20+00:00"
    assert (told["stdout"], told["stderr"]) == ("1\n4\n6\n", "2\n3\n5ä\n")
    both = call("logs", job)
    assert (both.out, both.err) == ("1\n4\n6\n", "2\n3\n5ä\n")
    assert call("logs", "--stdout", "--stderr", job).err == both.err


def test_which_part_of_the_logs(job: str, controller: FakeService, call: Call) -> None:
    recorded(controller, job, *LINES)
    assert pieces(call("logs", "--json", "--tail", "3", job).out) == "45ä6"
    assert pieces(call("logs", "--json", "-n", "0", job).out) == ""
    assert pieces(call("logs", "--json", "--tail", "2", "--stderr", job).out) == "35ä"
    for since in ("2023-11-14T22:13:45+00:00", "2023-11-14T23:13:45+01:00"):
        assert pieces(call("logs", "--json", "--since", since, job).out) == "45ä6"
    assert pieces(call("logs", "--json", "--since", "2023-11-14T22:13:45Z", "--tail", "1", "--stdout", job).out) == "6"
    assert pieces(call("logs", "--json", "--since", "10m", job).out) == ""
    controller.end(job, JobState.SUCCEEDED, 0)
    lines = call("logs", "-f", "--json", "--tail", "2", job).out.splitlines()
    assert [json.loads(x)["text"] for x in lines] == ["5ä\n", "6\n"]
    wrong = call("logs", "--since", "soon", job)
    assert (wrong.code != 0, "--since is 'soon', expected" in wrong.err) == (True, True)
    assert "can't be combined" in call("logs", "--live", "--tail", "1", job).err


def test_a_letter_that_a_piece_cuts_is_whole_in_json(job: str, controller: FakeService, call: Call) -> None:
    recorded(controller, job, (0, "out", "ä\n"))
    controller.logs[job, "times"] = Row(1000, 1, 0).packed() + Row(5000, 3, 0).packed()
    assert json.loads(call("logs", "--json", job).out)["stdout"] == "ä\n"


def test_logs_of_an_attempt_that_there_is_not_is_an_error(job: str, controller: FakeService, call: Call) -> None:
    recorded(controller, job, *LINES)
    assert call("logs", "--attempt", "99", job).code == NotFound.exit_code
    assert call("logs", "--attempt", "1", job).out == "1\n4\n6\n"


def test_logs_say_where_earlier_runs_are(job: str, controller: FakeService, call: Call) -> None:
    recorded(controller, job, *LINES)
    controller.earlier = [1, 3]
    told = call("logs", "--stdout", job)
    assert told.out == "1\n4\n6\n"
    assert told.err == f"Earlier runs of {job} have output of their own: --attempt 1, --attempt 3.\n"


def test_a_time_of_no_calendar_is_not_told(job: str, controller: FakeService, call: Call) -> None:
    recorded(controller, job, (1e16, "out", "1\n"))
    told = call("logs", "--json", job)
    assert told.code == 0, told.err
    assert json.loads(told.out)["pieces"] == [{"stream": "stdout", "time": None, "text": "1\n"}]


def test_since_needs_a_record_of_times(job: str, controller: FakeService, call: Call) -> None:
    controller.logs[job, "out"] = b"one\n"
    told = call("logs", "--since", "10m", job)
    assert (told.code, "Leave --since out" in told.err) == (Conflict.exit_code, True)


def test_a_job_so_young_that_nothing_is_printed_yet_has_nothing_since_a_time(
    job: str, controller: FakeService, call: Call
) -> None:
    """It was told to be of an older agent."""
    told = call("logs", "--since", "10s", job)
    assert (told.code, told.out, told.err) == (0, "", "")

    def prints() -> None:
        controller.logs[job, "times"] = Row(int(SystemClock().now().timestamp() * 1000), 4, 0).packed()
        controller.logs[job, "out"] = b"one\n"
        controller.end(job, JobState.SUCCEEDED, 0)

    threading.Timer(0.3, prints).start()
    followed = call("logs", "-f", "--since", "10s", job)
    assert (followed.code, followed.out) == (0, "one\n"), followed.err


def test_checkpoint(job: str, controller: FakeService, call: Call) -> None:
    assert json.loads(call("checkpoint", job, "--json").out) == {"job": job, "number": 4}

    def saved(name: str, number: int) -> None:
        controller.statuses[name] = replace(controller.statuses[name], checkpoint=f"000002-{number:06d}")

    controller.on_checkpoint = saved
    result = call("checkpoint", job, "--wait")
    assert result.code == 0, result.err
    assert "000002-000004" in result.out


def test_suspend_resume_cancel(job: str, controller: FakeService, call: Call) -> None:
    assert json.loads(call("suspend", job, "--json", "--wait").out)["state"] == "held"
    assert controller.statuses[job].job.wish == "hold"
    assert call("resume", job).code == 0
    assert call("resume", job).code == 14
    assert json.loads(call("cancel", job, "--json").out)["state"] == "cancelled"


DIGEST = hashlib.sha256(b">1\nACGT\n").hexdigest()


def test_outputs(job: str, controller: FakeService, call: Call, folder: Path) -> None:
    assert call("outputs", job).code == 14
    controller.end(job, JobState.SUCCEEDED, 0)
    controller.results[job] = {"a/contigs.fa": b">1\nACGT\n"}
    assert json.loads(call("outputs", job, "--json").out) == [{"path": "a/contigs.fa", "size": 8, "sha256": DIGEST}]
    told = call("outputs", job, "--to", "results")
    assert (told.code, told.out) == (0, "In results: 1 file, 8 B, each as its machine published it (SHA-256).\n")
    assert (folder / "results" / "a" / "contigs.fa").read_bytes() == b">1\nACGT\n"
    (folder / "a-file").touch()
    blocked = call("outputs", job, "--to", str(folder / "a-file"))
    assert (blocked.code, blocked.out) == (2, "")
    assert "can't be written (Not a directory): name another folder" in blocked.err
    assert call("outputs", job, "--to", "results", "--force", "--json").code == 0


def test_a_download_that_was_interrupted_is_completed(job: str, controller: FakeService, call: Call, folder: Path) -> None:
    """It left some files, and refused to go on because of them."""
    controller.end(job, JobState.SUCCEEDED, 0)
    controller.results[job] = {"a.txt": b"one", "b.txt": b"two", "c.txt": b"three"}

    def interrupted(_: JobId, path: str) -> Iterator[bytes]:
        if path == "b.txt":
            raise Conflict("the test ends it here")
        return iter([controller.results[job][path]])

    whole, controller.output = controller.output, interrupted  # type: ignore[method-assign]
    assert call("outputs", job, "--to", "results").code == 14
    assert [x.name for x in (folder / "results").iterdir()] == ["a.txt"]
    asked: list[str] = []

    def counted(job: JobId, path: str) -> Iterator[bytes]:
        asked.append(path)
        return whole(job, path)

    controller.output = counted  # type: ignore[method-assign]
    again = call("outputs", job, "--to", "results")
    assert (again.code, asked) == (0, ["b.txt", "c.txt"]), again.err
    assert "Already in results: 1 of 3 files.\n" in again.err
    assert {x.name: x.read_bytes() for x in (folder / "results").iterdir()} == controller.results[job]


@pytest.mark.parametrize("other", ["another size", "two!"[:3].upper()])
def test_another_file_of_an_outputs_name_is_left_alone(
    job: str, controller: FakeService, call: Call, folder: Path, other: str
) -> None:
    controller.end(job, JobState.SUCCEEDED, 0)
    controller.results[job] = {"a.txt": b"one", "b.txt": b"two"}
    (folder / "results").mkdir()
    (folder / "results/b.txt").write_text(other)
    refused = call("outputs", job, "--to", "results")
    assert (refused.code, "results/b.txt is there already and is another file" in refused.err) == (2, True)
    assert "--force" in refused.err
    assert [x.name for x in (folder / "results").iterdir()] == ["b.txt"], "nothing half-made"
    assert (folder / "results/b.txt").read_text() == other
    assert call("outputs", job, "--to", "results", "--force").code == 0
    assert (folder / "results/b.txt").read_text() == "two"


@pytest.mark.parametrize(
    ("options", "state", "said"),
    [
        ([], JobState.SUCCEEDED, "it names no outputs: name them in the job file"),
        (["--out", "*.fa"], JobState.SUCCEEDED, "its outputs, *.fa, matched nothing"),
        (["--out", "*.fa"], JobState.CANCELLED, "it was cancelled before they were published"),
        (["--out", "*.fa"], JobState.FAILED, "it failed: the command ended with exit code 0 (nothing matches *.fa)."),
    ],
)
def test_why_a_job_has_no_results(controller: FakeService, call: Call, options: list[str], state: JobState, said: str) -> None:
    job = call("submit", "-q", *options, "--", "prog").out.strip()
    controller.end(job, state, 0, "the command ended with exit code 0 (nothing matches *.fa)" if state == "failed" else "")
    assert said in call("outputs", job).out


def test_an_output_may_not_leave_its_folder(job: str, controller: FakeService, call: Call, folder: Path) -> None:
    controller.end(job, JobState.SUCCEEDED, 0)
    controller.results[job] = {"../evil": b"x"}
    assert call("outputs", job, "--to", "results").code == 1
    assert not (folder / "evil").exists()


def test_version(call: Call) -> None:
    assert call("version").out.startswith("spotsurfer 0.")
    assert json.loads(call("version", "--json").out)["version"]


def steps_of(controller: FakeService, job: str) -> None:
    noon, later = "2026-03-01T12:00:00+00:00", "2026-03-01T12:01:00+00:00"
    first, second = {"out": 0, "err": 0}, {"out": 4, "err": 2}
    runs = [StepRun("setup", 0, first, noon, 0, second, later, 3.0), StepRun("main", 1, second, later)]
    steps = tuple(JobStep(n, ("prog", "--json", "-x")) for n in ("setup", "main", "finish"))
    spec = replace(controller.statuses[job].job.spec, steps=steps)
    controller.change(job, spec=spec)
    controller.statuses[job] = replace(controller.statuses[job], steps=runs)
    controller.logs[job, "out"], controller.logs[job, "err"] = b"one\ntwo\n", b"e\nf\n"


def test_the_output_of_one_step(controller: FakeService, call: Call, job: str) -> None:
    steps_of(controller, job)
    result = call("logs", "--step", "setup", job)
    assert (result.code, result.out, result.err.splitlines()[1:]) == (0, "one\n", ["e"])
    assert call("logs", "--step", "main", "--stdout", job).out == "two\n"
    assert call("logs", "-f", "--step", "setup", job).out == "one\n", "it has ended: nothing more to follow"
    assert "has not begun" in call("logs", "--step", "finish", job).err
    wrong = call("logs", "--step", "setp", job)
    assert (wrong.code != 0, "Did you mean" in wrong.err) == (True, True)
    assert "can't be combined" in call("logs", "--step", "main", "--attempt", "1", job).err


def test_show_tells_how_each_step_ended(controller: FakeService, call: Call, job: str) -> None:
    steps_of(controller, job)
    shown = [line.split() for line in call("show", job).out.splitlines()]
    assert [row[:2] for row in shown if row[:1] in (["setup"], ["main"])] == [["setup", "0"], ["main", "-"]]
    assert [row[-4:-2] for row in shown if row[:1] == ["finish"]] == [["comes", "later"]]
    assert json.loads(call("show", "--json", job).out)["steps"][0]["exit_code"] == 0


def test_a_result_that_is_not_what_was_published_is_not_kept(
    job: str, controller: FakeService, call: Call, folder: Path
) -> None:
    controller.results[job] = {"a.txt": b"ACGT", "old.txt": b"x"}
    controller.end(job, JobState.SUCCEEDED, 0)
    controller.digests = {"a.txt": "0" * 64, "old.txt": ""}
    wrong = call("outputs", job, "--to", "results")
    assert (wrong.code, "SHA-256" in wrong.err) == (34, True)
    assert list((folder / "results").iterdir()) == []
    controller.digests = {"old.txt": ""}
    assert "1 of them have no digest" in call("outputs", job, "--to", "results").out
    assert (folder / "results/a.txt").read_bytes() == b"ACGT"
    again = call("outputs", job, "--to", "results")
    assert (again.code, "old.txt is there already and nothing tells whether it is whole" in again.err) == (2, True)


def test_what_a_running_job_has_written_so_far(job: str, controller: FakeService, call: Call, folder: Path) -> None:
    controller.results[job], controller.looks_needed = {"a b/x#1.txt": b"ACGT"}, 3
    result = call("outputs", job, "--partial", "--to", "so-far")
    assert result.code == 0, result.err
    assert "the job runs on" in result.out
    assert (folder / "so-far/a b/x#1.txt").read_bytes() == b"ACGT"
    told = json.loads(call("outputs", job, "--partial", "--json").out)
    assert (told["step"], told["missing"], [f["size"] for f in told["outputs"]]) == ("main", ["*.log"], [4])
    controller.partial_fails = Conflict("its disk is full")
    refused = call("outputs", job, "--partial")
    assert (refused.code, "its disk is full" in refused.err) == (14, True)


def test_a_dry_run_shows_choices_and_reasons_and_makes_no_job(controller: FakeService, call: Call) -> None:
    small = Offer(Pool("aws", "us-east-1", "us-east-1a", "m6i.large"), Market.SPOT, 31_000, 96_000, 2, 8 << 30, 1, 9)
    large = replace(small, pool=replace(small.pool, instance_type="m6i.8xlarge"), price_usd_micros_per_hour=900_000)
    controller.previewed = Preview([small], [(large, "it costs too much")] * 3, "")
    words = ("submit", "--name", "asm", "--dry-run", "--type", "m6i.*", "--price-max", "0.5", "--", "prog")
    result = call(*words)
    assert result.code == 0, result.err
    assert "Would be launched now: spot m6i.large in us-east-1a, 0.0310 USD an hour." in result.out
    assert "5-10 %" in result.out
    assert "it costs too much" in result.out
    answer = json.loads(call(*words[:1], "--json", *words[1:]).out)
    assert answer["choices"][0]["usd_micros_per_hour"] == 31_000
    assert [r["why"] for r in answer["rejected"]] == ["it costs too much"] * 3
    assert (controller.statuses, controller.uploads) == ({}, {})
    controller.previewed = Preview([], [(large, "it costs too much")], "no machine can be had")
    for more in ([], ["--json"]):
        nothing = call(*words[:1], *more, *words[1:])
        said = "Nothing would be launched now: no machine can be had. See docs/guides/troubleshooting.md#a-job-waits.\n"
        assert (nothing.code, nothing.err) == (21, said)
        assert "it costs too much" in nothing.out
    controller.previewed = Preview([], [], "")
    assert call(*words).code == 21


def test_rails_of_a_job_arrive(controller: FakeService, call: Call) -> None:
    assert call("submit", "--name", "asm", "--type", "m6i.*", "--type", "c6i.large", "--price-max", "0.5", "--", "x").code == 0
    (status,) = controller.statuses.values()
    assert (status.job.spec.instance_types, status.job.spec.price_max_usd_micros) == (("m6i.*", "c6i.large"), 500_000)


def _three(call: Call) -> list[str]:
    return [
        str(json.loads(call("submit", "--json", "--name", name, "--tag", tag, "--", "prog").out)["id"])
        for name, tag in (("a", "run=7"), ("b", "run=7"), ("c", "run=8"))
    ]


@pytest.mark.parametrize(
    ("words", "ended"),
    [(["a", "c"], [True, False, True]), (["--all"], [True, True, True]), (["--tag", "run=7"], [True, True, False])],
)
def test_several_jobs_are_cancelled_at_once(controller: FakeService, call: Call, words: list[str], ended: list[bool]) -> None:
    jobs = _three(call)
    result = call("cancel", *words)
    assert result.code == 0, result.err
    assert [controller.statuses[job].job.state == "cancelled" for job in jobs] == ended
    assert result.out.count("is being cancelled") == sum(ended)


def test_one_that_can_not_be_cancelled_keeps_none_of_the_others(controller: FakeService, call: Call) -> None:
    _three(call)
    result = call("cancel", "a", "nobody", "b")
    assert result.code == 13
    assert "nobody" in result.err and "1 of 3 jobs could not be cancelled" in result.err
    assert [s.job.state for s in controller.statuses.values()] == ["cancelled", "cancelled", "active"]


@pytest.mark.parametrize("words", [[], ["a", "--all"], ["--all", "--tag", "x=y"]])
def test_what_to_cancel_is_said_in_one_way(controller: FakeService, call: Call, words: list[str]) -> None:
    _three(call)
    assert call("cancel", *words).code == 2
    assert all(s.job.state == "active" for s in controller.statuses.values())
