"""What happens on a minibox to a job with inputs from buckets and shared file systems: each function is one scene."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.files import staging
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.prepare.images.registry import ImageRules
from spotsurfer_agent.prepare.inputs.cache import Cache
from spotsurfer_agent.prepare.inputs.delivery import Delivery, JobInputs
from spotsurfer_agent.prepare.inputs.sources import Sources
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import AgentConfig, Fetch, Share, Spec
from spotsurfer_wire.store.obstore import ObstoreStore, open_store
from support.engine_kit import BASE, JOB, STORE, W, engine, keep_output, newest, output, request, turns_pass, until
from support.link import link
from support.registry import HOST, registry
from support.sources import Buckets, serving

BUCKETS, NFS = Path("/run/store/buckets"), Path("/run/store/nfs")
LINES = 200
PROGRAM = """\
import os, time
lines, ref = open("reads/a.txt"), open("/media/ref.txt")
shared = open(os.environ.get("OUT", "out") + "/told.txt", "a", buffering=1)
for line in lines:
    print(line.strip(), flush=True)
    shared.write(line)
    open("reads/a.txt.index", "w").write(line)
    time.sleep(0.02)
print("ref", ref.read().strip(), os.path.realpath("reads/a.txt"), open("reads/deep/b.txt").read())
"""


def spec(**changes: object) -> Spec:
    shares = [
        Share("out", "bind", str(NFS / "out"), "out", read_only=False),
        Share("ref", "bind", str(NFS / "ref"), "/media"),
    ]
    fetches = [Fetch("s3://lab/reads/", to="reads"), Fetch("s3://lab/prog.py")]
    whole = Spec(JOB, ["python3", "prog.py"], fetches=fetches, shares=shares)
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


class Machine:
    """What `Work` does around a start and a restore, with the real engine."""

    def __init__(self, server: Buckets) -> None:
        self.store: ObstoreStore = open_store(STORE)
        self.server, self.engine = server, engine(self.store)
        config = AgentConfig(JOB, 1, STORE, input_options=server.options)
        self.goods = JobInputs.of(BASE, config)

    def bring(self, wanted: Spec) -> None:
        self.goods.ready(wanted, self.store, self.engine.scratch(), lambda: None, lambda _: None)

    def begin(self, wanted: Spec) -> None:
        self.bring(wanted)
        staging.place_inputs(self.store, wanted, self.engine.scratch())
        self.goods.delivery.place(wanted, self.engine.scratch())
        self.engine.start(wanted)


def prepare() -> None:
    """Buckets and the far side of the shared file systems."""
    for path, text in (
        (BUCKETS / "lab/reads/a.txt", "".join(f"line {i}\n" for i in range(LINES))),
        (BUCKETS / "lab/reads/deep/b.txt", "deep"),
        (BUCKETS / "lab/prog.py", PROGRAM),
        (NFS / "ref/ref.txt", "the reference"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (NFS / "out").mkdir(exist_ok=True)


def begins() -> None:
    """A job reads its inputs, which are links to files that it can't change, and goes to another machine."""
    prepare()
    with serving(Buckets(BUCKETS)) as server:
        machine = Machine(server)
        machine.begin(spec())
        turns_pass(machine.engine, 20)
        work = Path(machine.engine.scratch(), "work")
        assert str((work / "reads/a.txt").readlink()) == f"{BASE}/inputs/reads/a.txt"
        image = machine.engine.save(request(1, final=True, commit=lambda i: keep_output(machine.engine, i.log)))
        assert image.new_bytes > 0
        machine.engine.kill()
        machine.goods.drop()
        assert not list((BASE / "shares").glob("*/*"))
    assert not [e.path for e in newest(machine.store).scratch if e.kind == "file" and e.path.endswith("reads/a.txt")]


def goes_on() -> None:
    """The other machine has none of it, brings it, and the job goes on where it was."""
    with serving(Buckets(BUCKETS)) as server:
        machine = Machine(server)
        image = newest(machine.store)
        machine.bring(spec())
        machine.engine.restore(image, spec())
        until(lambda: machine.engine.status().state is W.EXITED, 60.0)
        status = machine.engine.status()
        assert status.exit_code == 0, output(machine.engine, "err")
        assert status.log is not None
        keep_output(machine.engine, status.log)
        told = Path("/run/store/log-out").read_text().splitlines()
        assert told[:-1] == [f"line {i}" for i in range(LINES)]
        assert told[-1] == f"ref the reference {BASE}/inputs/reads/a.txt deep"
        assert (NFS / "out/told.txt").read_text().split("\n") == [*told[:-1], ""]
        assert Path(machine.engine.scratch(), "work/reads/a.txt.index").read_text() == f"line {LINES - 1}\n"
        machine.engine.kill()
        machine.goods.drop()
        assert sorted({key for _, key in server.sent}) == ["prog.py", "reads/a.txt", "reads/deep/b.txt"]


def is_refused() -> None:
    """A changed input, a missing folder: said before anything is restored."""
    with serving(Buckets(BUCKETS)) as server:
        machine = Machine(server)
        source = BUCKETS / "lab/reads/a.txt"
        kept = source.read_text()
        source.write_text("line 0\n")
        with pytest.raises(staging.FilesError, match=rf"size.* was {len(kept)} .*and is 7 "):
            machine.bring(spec())
        assert machine.engine.status().state is W.ABSENT
        source.write_text(kept)
        machine.goods.drop()
        shutil.move(NFS / "ref", NFS / "elsewhere")
        with pytest.raises(staging.FilesError, match=r"mount ref .*no such folder") as e:
            machine.bring(spec())
        assert e.value.kind == "input"
        machine.goods.drop()
        with pytest.raises(staging.FilesError, match="mount ref"):
            machine.goods.ahead(spec(), machine.store, machine.engine.scratch(), lambda: None)
        shutil.move(NFS / "elsewhere", NFS / "ref")
        machine.goods.drop()


def is_lost() -> None:
    """A loss without notice: what the job only appends to on a shared file system has grown meanwhile, and it goes on."""
    prepare()
    wanted = spec(shares=[Share("out", "bind", str(NFS / "out"), "/srv", read_only=False), *spec().shares[1:]])
    wanted = dataclasses.replace(wanted, environment={"OUT": "/srv"})
    with serving(Buckets(BUCKETS)) as server:
        machine = Machine(server)
        machine.begin(wanted)
        turns_pass(machine.engine, 10)
        machine.engine.save(request(1, final=False))
        turns_pass(machine.engine, 10)
        machine.engine.kill()
        before = (NFS / "out/told.txt").stat().st_size
        machine.bring(wanted)
        machine.engine.restore(newest(machine.store), wanted)
        turns_pass(machine.engine, 10)
        assert (NFS / "out/told.txt").stat().st_size > before
        machine.engine.kill()
        machine.goods.drop()


def ladder_sees() -> None:
    """Files on declared file systems stand in nobody's way."""
    prepare()
    with serving(Buckets(BUCKETS)) as server:
        machine = Machine(server)
        data = json_codec.encode(spec())
        machine.store.create(object_keys.spec_key(JOB), data)
        ladder = JobEngine(BASE, JOB, machine.store, machine.engine.tools, machine.engine.origin)
        machine.bring(spec())
        machine.goods.delivery.place(spec(), machine.engine.scratch())
        ladder.start(spec())
        until(lambda: (ladder.status().log or {}).get("out", 0) > 50)
        ladder.look()
        assert ladder.protection().rung == "criu", ladder.protection()
        ladder.kill()
        machine.goods.drop()


def in_image() -> None:
    """A container image knows nothing of the folders that inputs and shared file systems are seen in."""
    prepare()
    wanted = spec(
        command=["sh", "-c", "cat reads/deep/b.txt /data/set/ref.txt; echo $PWD; while sleep 0.1; do echo turns; done"],
        image=f"docker://{HOST}/small:1",
        shares=[Share("ref", "bind", str(NFS / "ref"), "/data/set"), Share("out", "bind", str(NFS / "out"), "out")],
    )
    with serving(Buckets(BUCKETS)) as server, registry(Path("/run/store/registry")):
        machine = Machine(server)
        machine.engine.world.images.rules = ImageRules(insecure=(HOST,))
        machine.begin(wanted)
        until(lambda: b"turns" in output(machine.engine))
        assert output(machine.engine).startswith(f"deepthe reference{BASE}/work\nturns\n".encode()), output(machine.engine)
        machine.engine.save(request(1, final=True))
        machine.engine.kill()
        machine.goods.drop()
        shutil.rmtree(BASE / "images")
        machine.bring(wanted)
        machine.engine.restore(newest(machine.store), wanted)
        turns_pass(machine.engine, 3)
        machine.engine.kill()
        machine.goods.drop()


def cut_midway() -> None:
    """The link is dead for a while, then every connection is broken: what was fetched stays, and the rest comes."""
    folder = Path("/run/store/jobs", JOB, "in/lab")
    folder.mkdir(parents=True)
    for i in range(20):
        (folder / f"{i}.bin").write_bytes(os.urandom(1 << 20))
    nft = Tools.find(Path(os.environ["SPOTSURFER_PREFIX"])).nft
    with link(100_000_000) as way:
        cache = Cache(BASE / "cache")
        delivery = Delivery(BASE, cache, Sources({"s3://": way.options}))
        wanted = Spec(JOB, ["x"], fetches=[Fetch(f"s3://store/jobs/{JOB}/in/lab/")])
        with ThreadPoolExecutor(1) as pool:
            going = pool.submit(delivery.ready, wanted, open_store(STORE))
            for harm, cure in ((way.cut, way.mend), (lambda: way.reset(nft), lambda: way.allow(nft))):
                before = delivery.done_bytes
                until(lambda: delivery.done_bytes > before + (4 << 20))  # noqa: B023
                harm()
                time.sleep(1.0)
                assert not going.done()
                cure()
            going.result(60.0)
    view = BASE / "job/inputs/lab"
    assert {p.name: p.read_bytes() for p in view.iterdir()} == {p.name: p.read_bytes() for p in folder.iterdir()}


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
