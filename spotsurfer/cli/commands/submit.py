"""`submit`: turns a job file or options into a job, with dry run, notes on GPUs, uploads, and the wait for the end."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.cli.common import SESSION, examples, timeout_seconds
from spotsurfer.cli.follow import until_all_ended, until_ended, verdict
from spotsurfer.cli.printing import complain, console, is_quiet, money, put, put_json, table, tell
from spotsurfer.common.units import counted
from spotsurfer.common.units import size as human_size
from spotsurfer.model.errors import Conflict, NoCapacity, SpotsurferError, UsageError
from spotsurfer.model.queueing.arrays import read_array, task_id
from spotsurfer.web.client import Client, Json, job_path
from spotsurfer.web.submitting import request_body, spec_body, upload

if TYPE_CHECKING:
    from spotsurfer.jobspec.parse import JobRequest
    from spotsurfer.jobspec.uploads import InputFile
    from spotsurfer.model.job import JobSpec


# ---- GPU notes: what saving a job with GPUs costs, and on which machines it may fail.

GIB = 1 << 30
HOST_SHARE = 1.1  # multiple of the GPU memory in use that must be free in the machine during a save: docs/gpu.md
UNSAVED = ("none", "app")  # engines that move no GPU memory
# Sums of 256 MB over two H200s, measured by bench/gpu/programs/allreduce.py.
FAST_GB_S, SOCKETS_GB_S = 292, 3.5


def about_nccl(spec: Json) -> str:
    """The cost of saving for NCCL of a job on several GPUs; "" = none."""
    own = spec.get("environment", {}).get("SPOTSURFER_NCCL", "sockets")
    if spec.get("gpus", 0) < 2 or own != "sockets" or spec.get("engine") in UNSAVED:
        return ""
    return (
        f"So that {spec['gpus']} GPUs can be saved together, NCCL goes by sockets: sums over GPUs ran at {SOCKETS_GB_S:g} "
        f"instead of {FAST_GB_S} GB/s on two H200s. "
        'SPOTSURFER_NCCL = "own" in [environment] leaves NCCL as it is; then such a job can only save itself ([app]) '
        "or start over."
    )


def about_room(spec: Json, choices: Sequence[Json]) -> str:
    """A warning if the first choice has too little memory to save full GPUs; "" = it has enough."""
    if not choices or spec.get("engine") in UNSAVED or not (spec.get("gpus") or spec.get("gpu")):
        return ""
    first = choices[0]
    need = first["gpus"] * first["gpu_memory_bytes"] * HOST_SHARE
    if need <= first["memory_bytes"]:
        return ""
    return (
        f"{first['instance_type']} has {first['memory_bytes'] / GIB:.0f} GiB of memory and {need / HOST_SHARE / GIB:.0f} GiB "
        f"on its GPUs: a save needs free memory for all GPU memory in use and a tenth more. Ask for more in resources.memory."
    )


# ---- `submit --dry-run`: shows the offers, their prices, and reasons for rejections. Uploads and keeps nothing.

SHOWN = 5


def show_plan(client: Client, request: JobRequest) -> None:
    """Ask the controller and show its answer."""

    body = spec_body(request.spec)
    plan = client.post("/v1/plans", {"spec": body})
    put_json(plan)
    choices = plan["choices"]
    if choices and not plan["obstacle"]:
        put(f"Would be launched now: {_name(choices[0])}, {money(choices[0]['usd_micros_per_hour'])} USD an hour.")
    if choices:
        more = f", then {len(choices) - SHOWN} more" if len(choices) > SHOWN else ""
        put(f"\nTried in this order{more}:")
        columns = ["market", "machine", "zone", "cpu", "GiB", "gpu", "usd/h", "list", "interrupted"]
        table(columns, [_row(o) for o in choices[:SHOWN]])
    for note in (about_nccl(body), about_room(body, choices)):
        if note:
            put(f"\n{note}")
    if plan["rejected"]:
        put("\nNot taken:")
        table(["offers", "for example", "why"], _reasons(plan["rejected"]))
    if plan["obstacle"] or not choices:
        why = plan["obstacle"] or "no machine on offer fits the job"
        raise NoCapacity(f"Nothing would be launched now: {why.rstrip('.')}.")


def _name(offer: Json) -> str:
    return f"{offer['market']} {offer['instance_type']} in {offer['zone']}"


BANDS = ("<5 %", "5-10 %", "10-15 %", "15-20 %", ">20 %")  # of machines in a month, in the words of the cloud's advisor


def _row(o: Json) -> list[str]:
    band = "" if o["interruption_band"] is None else BANDS[o["interruption_band"]]
    size = [str(o["cpus"]), f"{o['memory_bytes'] / (1 << 30):g}", f"{o['gpus']} {o['gpu']}" if o["gpus"] else ""]
    prices = [money(o["usd_micros_per_hour"]), money(o["list_usd_micros_per_hour"])]
    return [o["market"], o["instance_type"], o["zone"], *size, *prices, band]


def _reasons(rejected: list[Json]) -> list[list[str]]:
    """One line for each reason, the most frequent first."""
    count = Counter(r["why"] for r in rejected)
    first = {r["why"]: _name(r["offer"]) for r in reversed(rejected)}
    return [[str(n), first[why], why] for why, n in count.most_common()]


# ---- Command

Secrets = Annotated[list[str] | None, typer.Option("--secret", help="NAME=env:VARIABLE or NAME=file:PATH; repeatable.")]
RegistryAuth = Annotated[
    str | None, typer.Option(help="Credentials for its registry: file:auth.json or env:NAME.", show_default=False)
]
Budget = Annotated[str | None, typer.Option(help="US dollars; the job is held before it is passed.", show_default=False)]
Deadline = Annotated[str | None, typer.Option(help="Time it has from now on, e.g. 70h; needs --work.", show_default=False)]
Work = Annotated[str | None, typer.Option(help="Time it takes if nothing interrupts it, e.g. 48h.", show_default=False)]
PriceMax = Annotated[
    str | None, typer.Option("--price-max", help="US dollars an hour that its machine may cost.", show_default=False)
]
Ports = Annotated[list[int] | None, typer.Option("--port", help="Port on which it listens for others; repeatable.")]
SuspendAfter = Annotated[str | None, typer.Option(help="Suspended after so long without work, e.g. 30m.", show_default=False)]
StuckAfter = Annotated[
    str | None, typer.Option(help="Told as stuck after so long without progress, e.g. 2h.", show_default=False)
]
Home = Annotated[
    Path | None, typer.Option(help="Folder of this host that it works in, there and home again.", show_default=False)
]
HomeFiles = Annotated[list[str] | None, typer.Option("--home-file", help="Only this of the folder comes along; repeatable.")]
Priority = Annotated[
    str | None, typer.Option(help="low, normal, high or a number; matters where limits leave no room.", show_default=False)
]
Licences = Annotated[list[str] | None, typer.Option("--licence", help="It takes while it runs, like vcs=1; repeatable.")]
Array = Annotated[str | None, typer.Option(help="Tasks, like 1-1000%50; {task} is the number of each.", show_default=False)]
After = Annotated[list[str] | None, typer.Option(help="afterok:JOB, afterany:JOB, … or singleton; repeatable.")]
Begin = Annotated[str | None, typer.Option(help="Not before: a time with a zone, or e.g. 2h from now.", show_default=False)]
TimeLimit = Annotated[
    str | None, typer.Option(help="So long it may run, on all machines together, e.g. 2h.", show_default=False)
]
Types = Annotated[list[str] | None, typer.Option("--type", help="Machine type or wildcard, like 'm6i.*'; repeatable.")]


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(
        epilog=examples(
            "spotsurfer submit assembly.toml",
            "spotsurfer submit assembly.toml --market on-demand --wait",
            "job=$(spotsurfer submit -q assembly.toml)",
            "spotsurfer submit assembly.toml --dry-run --type 'm6i.*' --price-max 0.50",
            "spotsurfer submit assembly.toml --deadline 70h --work 48h",
            "spotsurfer submit --cpu 2 --mem 4G --in reads.fq --out 'contigs/*.fa' -- megahit -t 2 -r reads.fq -o contigs",
            "spotsurfer submit answer.toml --priority high",
            "spotsurfer submit --licence vcs=1 --in tb.v -- vcs -R tb.v",
            "spotsurfer submit --home . --cpu 4 --mem 8G -- make -j4 report.pdf",
            "spotsurfer submit sweep.toml --array 1-1000%50",
            "spotsurfer submit merge.toml --after afterok:sweep-3fa1b2",
            "spotsurfer submit train.toml --gpus 2 --gpu H100 --dry-run",
            "spotsurfer submit --cpu 1 --mem 1G -- sh -c 'sort big.txt > sorted.txt'",
            "spotsurfer submit --image docker://registry.example/tools/bwa:0.7 --in reads.fq -- bwa index reads.fq",
            "spotsurfer submit --port 8888 --suspend-after 30m -- jupyter server --ip=0.0.0.0 --port=8888",
            "spotsurfer submit --secret API_TOKEN=env:API_TOKEN --secret DB=file:~/db.password -- ./fetch-and-count",
        )
    )(submit)


def submit(  # noqa: PLR0913 - one parameter an option
    jobfile: Annotated[Path | None, typer.Argument(metavar="JOBFILE", help="Job file (TOML).", show_default=False)] = None,
    *,
    name: Annotated[str | None, typer.Option(help="Name of the job.", show_default=False)] = None,
    cpu: Annotated[int | None, typer.Option(help="Processors.", show_default=False)] = None,
    mem: Annotated[str | None, typer.Option(help="Memory, e.g. 4G.", show_default=False)] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs.", show_default=False)] = None,
    gpu: Annotated[str | None, typer.Option(help="Which chip, e.g. H100.", show_default=False)] = None,
    licences: Licences = None,
    inputs: Annotated[list[str] | None, typer.Option("--in", help="Input file, folder or address; repeatable.")] = None,
    outputs: Annotated[list[str] | None, typer.Option("--out", help="Output file or wildcard; repeatable.")] = None,
    outputs_optional: Annotated[
        bool | None, typer.Option("--outputs-optional", help="It is no failure when one is not there.", show_default=False)
    ] = None,
    home: Home = None,
    home_files: HomeFiles = None,
    folder: Annotated[str | None, typer.Option(help="Folder in which the command runs.", show_default=False)] = None,
    environment: Annotated[list[str] | None, typer.Option("--env", help="NAME=value; repeatable.")] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="name=value; repeatable.")] = None,
    project: Annotated[str | None, typer.Option(help="For which it is paid.", show_default=False)] = None,
    secrets: Secrets = None,
    image: Annotated[str | None, typer.Option(help="Container image, docker://host/name:tag.", show_default=False)] = None,
    registry_auth: RegistryAuth = None,
    user: Annotated[str | None, typer.Option(help="User of the machine or image.", show_default="unprivileged")] = None,
    market: Annotated[str | None, typer.Option(help="spot-first, spot or on-demand.", show_default=False)] = None,
    interval: Annotated[str | None, typer.Option(help="Between checkpoints, e.g. 10m.", show_default=False)] = None,
    retries: Annotated[int | None, typer.Option(help="If the command itself fails.", show_default=False)] = None,
    budget: Budget = None,
    price_max: PriceMax = None,
    deadline: Deadline = None,
    work: Work = None,
    instance_types: Types = None,
    ports: Ports = None,
    suspend_after: SuspendAfter = None,
    stuck_after: StuckAfter = None,
    priority: Priority = None,
    array: Array = None,
    after: After = None,
    begin: Begin = None,
    time_limit: TimeLimit = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be launched, and why.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end; 16 if it fails, 41 if it is held.")] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="With --wait: give up after so long; the job goes on.", show_default=False)
    ] = None,
) -> None:
    """Submit a job: a job file, options and `-- prog args`, or both (options win)."""
    given: dict[str, object] = {
        "name": name,
        "resources.cpu": cpu,
        "resources.memory": mem,
        "resources.gpus": gpus,
        "resources.gpu": gpu,
        "resources.licences": licences,
        "inputs": inputs,
        "outputs": outputs,
        "outputs_optional": outputs_optional,
        "home": None if home is None else str(home),
        "home_files": home_files,
        "folder": folder,
        "environment": _assignments("--env", environment),
        "secrets": _assignments("--secret", secrets),
        "image": image,
        "registry_auth": registry_auth,
        "tags": _assignments("--tag", tags),
        "project": project,
        "user": user,
        "market": market,
        "checkpoint_interval": interval,
        "retries": retries,
        "budget_usd": budget,
        "price_max_usd": price_max,
        "deadline": deadline,
        "work": work,
        "resources.instance_types": instance_types,
        "command": SESSION.tail,
    }
    if timeout is not None and not wait:
        raise UsageError("--timeout says how long --wait waits: give both.")
    given |= {"ports": ports, "idle.suspend_after": suspend_after, "stuck_after": stuck_after, "priority": priority}
    given |= {"array": array, "after": after, "begin": begin, "time_limit": time_limit}
    limit = None if timeout is None else timeout_seconds(timeout)
    request, client = _request(jobfile, given), SESSION.client()
    if dry_run:
        show_plan(client, request)
        return
    job = send(client, request)
    id = job["array"] or job["id"]
    if wait:
        tell(f"Submitted {id}.")
        job = _wait(client, request.spec, job, limit)
    spec = job["spec"]
    if spec["secrets"]:
        how = (
            "and are NOT encrypted unless the operator set it."
            if spec["secrets_in_plain_images"]
            else "so they are encrypted; its output and outputs are not."
        )
        tell(f"Checkpoints hold the job's memory and with it its secrets, {how}")
    if cost := about_nccl(spec):
        tell(cost)
    put_json(job)
    if is_quiet():
        put(id)
    elif not wait and job["array"]:
        put(f"Submitted {id} with {counted(len(read_array(spec['array']).tasks), 'task')}. `spotsurfer list` shows them.")
    elif not wait:
        put(f"Submitted {id}. `spotsurfer watch {id}` follows it.")
    if wait:
        verdict(job)


def _wait(client: Client, spec: JobSpec, job: Json, limit: float | None) -> Json:
    """The job or array at its end, with all that comes home there."""
    array = job["array"]
    ended = until_all_ended(client, array, limit) if array else until_ended(client, job["id"], limit)
    if spec.home or spec.stdout:
        from spotsurfer.cli.commands.home import come_home

        come_home(client, [task_id(array, task) for task in read_array(spec.array).tasks] if array else [job["id"]])
    return ended


def send(client: Client, request: JobRequest) -> Json:
    """Upload the inputs and create the job; a failure leaves nothing half-made."""
    spec = request.spec
    if comes_home := bool(spec.home or spec.stdout or spec.stderr):
        from spotsurfer.home import bring

        request = replace(request, spec=bring(client, spec, tell))
    job = str(client.post("/v1/ids", {"name": request.spec.name})["job"])
    try:
        with _progress(request.inputs) as sent:
            upload(client, job, request, sent)
        made = client.put(job_path(job), request_body(request))
    except BaseException:
        try:
            client.delete(job_path(job, "inputs"))
        except Conflict:
            complain(f"It was submitted all the same, as {job}: `spotsurfer cancel {job}` ends it.")
        except SpotsurferError:
            complain(f"Whether it was submitted is not known: `spotsurfer show {job}` says so.")
        raise
    if comes_home:
        from spotsurfer.home import expect

        expect(client, [(request.spec, made)])
    return made


def _request(jobfile: Path | None, options: dict[str, object]) -> JobRequest:
    from spotsurfer.jobspec.parse import Origin, make_request, read_jobfile
    from spotsurfer.jobspec.remote_inputs import is_elsewhere

    given = {key: value for key, value in options.items() if value not in (None, [], {})}
    if jobfile is not None:
        # Paths on the command line are relative to the user's folder, those in the file to the file.
        if isinstance(paths := given.get("inputs"), list):
            given["inputs"] = [p if is_elsewhere(p) else str(Path.cwd() / Path(p).expanduser()) for p in paths]
        return read_jobfile(jobfile, given)
    if "command" not in given and "image" not in given:
        raise UsageError("Nothing to submit: name a job file, or write `-- prog args` after the options.")
    return make_request({}, given, Path.cwd(), Origin("The command line"))


def _assignments(option: str, words: list[str] | None) -> dict[str, str]:
    found = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {word!r} has no {'value' if name else 'name'}: write {option} NAME=value.")
        if name in found:
            raise UsageError(f"{option} gives {name} twice: keep one of them.")
        found[name] = value
    return found


@contextlib.contextmanager
def _progress(inputs: list[InputFile]) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, a line elsewhere, nothing for small uploads. The block tells it how many bytes more were sent."""
    total = sum(f.size for f in inputs)
    if total < 32 << 20 or is_quiet():
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        tell(f"Uploading {counted(len(inputs), 'file')}, {human_size(total)} …")
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress("uploading", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), console=console())
    with bar:
        task = bar.add_task("uploading", total=total)
        yield lambda count: bar.advance(task, count)
