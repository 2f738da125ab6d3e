"""What the agent must never do, over random sequences of facts and over random worlds."""

# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false
from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spotsurfer_agent.control.facts import AgentRules, Do, Facts, Hold, Notice, Outcome, Release, Shut, Task
from spotsurfer_agent.control.metadata_service import ServiceNotice
from spotsurfer_agent.control.state_machine import TABLE, TERMINAL, State, step
from spotsurfer_agent.ports.engine import Status
from spotsurfer_agent.ports.engine import WorkloadState as W
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import WORKLOAD_DEAD, Desired, Done, Head, HeadKind, SaveFacts, Step, Want
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.store.port import StoreError
from support.agent_world import JOB, AgentKilled, World

ME = 2
HEADS = st.one_of(
    st.none(),
    st.builds(
        lambda n, kind, epoch, final, done: Head(n, kind, epoch, "000001-000001", 1, final, done, 0.0, f"n{n}", ""),
        st.integers(1, 9),
        st.sampled_from([HeadKind.GRANT, HeadKind.COMMIT]),
        st.integers(1, 3),
        st.booleans(),
        st.sampled_from([None, None, None, Done(0, "exited"), Done(None, "cancelled")]),
    ),
)
SAVED = SaveFacts("000002-000002", 2, "live", 1, 1, 0.1, 3.0)
RULES = AgentRules(attempt=ME, interval_seconds=30.0, lease_seconds=60.0, limit_seconds=500.0, keep_seconds=60.0)


@st.composite
def looks(draw) -> dict[str, object]:
    return {
        "wait": draw(st.floats(0, 40)),
        "head": draw(HEADS),
        "head_read": draw(st.booleans()),
        "own_final": draw(st.sampled_from([False, False, False, True])),
        "own_done": draw(st.sampled_from([False, False, False, True])),
        "proved": draw(st.booleans()),
        "desired": draw(st.one_of(st.none(), st.builds(Desired, st.integers(1, 4), st.sampled_from(Want), st.integers(0, 3)))),
        "notice": draw(st.sampled_from([None, None, Notice("rebalance", "r", None), Notice("interruption", "i", 300.0)])),
        "workload": draw(st.sampled_from([W.RUNNING, W.RUNNING, W.ABSENT, W.EXITED, W.LOST])),
        "held": draw(st.booleans()),
        "pending_final": draw(st.sampled_from([None, None, None, "000002-000002"])),
        "began_before": draw(st.booleans()),
        "step_due": draw(st.booleans()),
        "unprotected": draw(st.booleans()),
        "lease_age_seconds": draw(st.floats(0, 130)),
        "reported": draw(st.booleans()),
        "refusal": draw(st.sampled_from(["", "", "", "protocol 9"])),
        "ends": draw(st.booleans()),
        "well": draw(st.booleans()),
    }


@settings(max_examples=300, deadline=None)
@given(st.lists(looks(), min_size=1, max_size=40))
def test_whatever_the_facts(script):
    """The table is kept, one task at a time, and what is dangerous is never wanted."""
    state, now, busy = State(), 0.0, None
    for look in script:
        now += look["wait"]
        fields = {f.name for f in dataclasses.fields(Facts)}
        outcome = None
        if busy is not None and look["ends"]:
            error = "" if look["well"] else "failed"
            outcome = Outcome(busy, now, error, save=SAVED if busy in (Task.LIVE, Task.FINAL) and not error else None)
            busy = None
        facts = Facts(
            now=now, status=Status(look["workload"], held=look["held"], pending_final=look["pending_final"]),
            rules=RULES, busy=busy, outcome=outcome, proved_at=now if look["proved"] else float("-inf"),
            **{k: v for k, v in look.items() if k in fields},
        )  # fmt: skip
        before, (state, effects) = state, step(state, facts)
        check(before, state, facts, effects)
        for effect in effects:
            if isinstance(effect, Do):
                assert busy is None, "one task at a time"
                busy = effect.task


def check(before: State, state: State, facts: Facts, effects) -> None:
    tasks = {e.task for e in effects if isinstance(e, Do)}
    assert state.name is before.name or state.name in TABLE[before.name].values()
    if before.name in TERMINAL:
        assert tasks <= {Task.KILL}, "nothing begins after the end"
        assert Release() not in effects
    if facts.lapsed or (state.held_since is not None and Release() not in effects):
        assert not tasks & {Task.LIVE, Task.FINAL, Task.BEGIN, Task.STEP, Task.THAW}, (
            "nothing is saved or started while somebody else may own it"
        )
    if facts.lapsed and facts.status.state is W.RUNNING and not facts.status.held and not state.killed:
        assert Hold() in effects, "held before anybody else may start"
    if Release() in effects:
        assert before.held_since is not None
        assert facts.mine and not facts.lapsed and facts.proved_at > before.held_since
    if facts.head is not None and not facts.mine and not facts.own_final and not facts.own_done:
        assert not tasks & {Task.LIVE, Task.FINAL, Task.BEGIN, Task.STEP, Task.PUBLISH} or before.name is S.BOOT, (
            "not ours: no work"
        )
    if Task.THAW in tasks:
        assert facts.mine, "what was kept runs on only when it was given back"
        assert before.name is S.RETURNING or facts.returned
    if state.name is S.FENCED:
        assert any(isinstance(e, Shut) for e in effects)
    if state.shown in WORKLOAD_DEAD and state.shown is not before.shown:
        assert state.killed, "said to be dead only when it is"


# ---------------------------------------------------------------- worlds

WORDS = ["cut", "mend", "lose", "kill agent", "drain", "run", "save", "notice", "grant", "reads only"]
ACTIONS = st.lists(
    st.one_of(st.tuples(st.just("turn"), st.integers(1, 20)), st.tuples(st.sampled_from(WORDS), st.just(0))),
    min_size=5,
    max_size=30,
)
WORK_SECONDS = 200
STEPS = [Step("setup", ["a"], protect=False), Step("main", ["b"]), Step("pack", ["c"], protect=False), Step("finish", ["d"])]


class Chaos:
    """A controller that grants by the rules, machines that come and go, a store that fails; checks after every turn."""

    def __init__(self, folder: Path, steps: list[Step]) -> None:
        self.world = World(folder, checkpoint_interval_seconds=15.0, steps=steps)
        self.length = WORK_SECONDS / max(len(steps), 1)
        self.attempt = 0
        self.sequence = 0
        self.lose = False
        self.world.store.after = self.after
        self.next_machine()

    def after(self, verb, key):
        if self.lose and verb in ("create", "put"):
            self.lose = False
            raise StoreError("answer lost")

    def next_machine(self) -> None:
        self.attempt += 1
        self.machine = self.world.machine(self.attempt, length=self.length)
        self.machine.boot()

    def act(self, word: str, count: int) -> None:
        w = self.world
        if word == "turn":
            for _ in range(count):
                self.turn()
        elif word == "cut":
            w.store.before = self.unreachable
        elif word == "reads only":
            w.store.before = lambda verb, key: self.unreachable(verb, key) if verb in ("create", "put") else None
        elif word == "mend":
            w.store.before = lambda verb, key: None
        elif word == "lose":
            self.lose = True
        elif word == "kill agent":
            self.machine.boot()
        elif word == "notice":
            self.machine.service.said = ServiceNotice("interruption", f"{self.attempt}", 120.0)
        elif word == "grant":
            self.grant()
        else:
            self.sequence += 1
            newest = w.heads()[-1].sequence if w.heads() else 0
            want = {"drain": Want.DRAIN}.get(word, Want.RUN)
            w.want(self.attempt, want, self.sequence, save_at_least=newest + 1 if word == "save" else 0)

    def unreachable(self, verb, key):
        raise StoreError("unreachable")

    def grant(self) -> None:
        """As a controller does: only when nobody holds it, or the holder was silent for its lease and a margin."""
        heads = self.world.heads()
        live = self.world.store.objects.get(object_keys.live_key(JOB, self.attempt))
        if live is None or (heads and heads[-1].done is not None):
            return
        if not heads:
            self.world.grant(self.attempt)
        elif heads[-1].epoch == self.attempt and (heads[-1].final or self.silent() > 75):
            self.next_machine()
            self.world.grant(self.attempt)

    def silent(self) -> float:
        return self.world.now - self.heard_at

    heard_at = 10_000.0
    heard = 0

    def turn(self) -> None:
        try:
            self.world.turn()
        except AgentKilled:
            self.machine.boot()
        live = self.world.store.objects.get(object_keys.live_key(JOB, self.attempt))
        if live is not None and self.world.report(self.attempt).sequence != self.heard:
            self.heard, self.heard_at = self.world.report(self.attempt).sequence, self.world.now
        self.check()

    def check(self) -> None:
        keys = [k for k in self.world.store.objects if k.startswith(object_keys.head_prefix(JOB))]
        owner = json_codec.decode(Head, self.world.store.objects[max(keys)]).epoch if keys else 0
        moving = [m for m in self.world.machines if m.shim.phase is W.RUNNING and not m.shim.held and m.shim.pending is None]
        assert all(m.attempt == owner for m in moving), "only the owner's job runs"
        if len(keys) != self.checked:
            self.checked = len(keys)
            self.check_heads(moving)

    checked = 0

    def check_heads(self, moving) -> None:
        heads = self.world.heads()
        assert [h.number for h in heads] == list(range(1, len(heads) + 1))
        epochs = [h.epoch for h in heads]
        assert epochs == sorted(epochs), "no entry of an attempt after a later grant"
        assert sum(h.done is not None for h in heads) <= 1, "published once"
        for head in heads:
            assert head.checkpoint is None or object_keys.manifest_key(JOB, head.checkpoint) in self.world.store.objects
        cpu = [h.cpu_seconds for h in heads]
        assert cpu == sorted(cpu), "committed work never goes back"
        finals = {h.epoch for h in heads if h.final}
        assert not finals & {m.attempt for m in moving}, "never resumed after its final entry"
        for machine in self.world.machines:
            begin, data = self.world.log(machine.attempt)
            assert machine.shim.output()[begin : begin + len(data)] == data


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS, st.sampled_from([[], STEPS]))
def test_whatever_happens_to_the_world(script, steps):
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder), steps)
        chaos.turn()
        chaos.grant()
        for word, count in script:
            chaos.act(word, count)
        chaos.act("mend", 0)
        chaos.lose = False
        chaos.world.want(chaos.attempt, Want.RUN, 99)
        for _ in range(2000):
            chaos.turn()
            if chaos.world.heads() and chaos.world.heads()[-1].done is not None:
                break
            if chaos.machine.agent.over:
                chaos.heard_at = float("-inf")  # its machine is gone for sure
                chaos.grant()
            elif not chaos.world.heads():
                chaos.grant()
        done = chaos.world.heads()[-1].done
        assert done is not None, "in the end the job is done"
        assert done.log["out"] == WORK_SECONDS * 9
        assert [run.name for run in done.steps] == [step.name for step in steps or [Step("main", [])]]
        assert all(run.exit_code == 0 for run in done.steps)
        ends = [run.log_end["out"] for run in done.steps]
        assert [run.log.get("out", 0) for run in done.steps] == [0, *ends[:-1]], (
            "each step's output begins where the last one's ended"
        )
