"""A moment of the timeline in people's words: one sentence, the same for the API, the command line and all other readers. Pure.

The record keeps the controller's own terms, so that old databases read as well as new ones; only this table translates them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from spotsurfer.common.units import duration, size
from spotsurfer.model.money import usd
from spotsurfer.model.state_machine import AttemptEvent as E
from spotsurfer.model.timeline_events import Kind

Data = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence. `inner`: a step in between, or what another moment says as well; people see it if they ask for everything."""

    text: str
    inner: bool = False


Saying = Callable[[str, Data], Said]  # of a moment's recorded text and data


def say(kind: str, text: str, data: Data) -> Said:
    """The sentence of a moment; one of an unknown kind, from a newer controller, keeps its recorded text."""
    saying = KINDS.get(kind)
    told = Said(_capital(f"{kind}: {plainly(text)}")) if saying is None else saying(text, data)
    return replace(told, text=told.text.removesuffix(": ") or "Nothing more is known")


# ---- Plain words for the reasons that the controller records. First match first, each where it occurs.

REASONS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"\battempt (\d+) stands by on \S+:", r"machine #\1 is ready:"),
        (r"\bno agent within (\d+) s of booting", r"it did not report within \1 s of its start"),
        (r"\bno report for (\d+) s", r"it did not report for \1 s"),
        (r"\bsilent for (\d+) s more", r"it has said nothing for \1 s more"),
        (r"\bthe agent stands by\b", "it is ready"),
        (r"\bthe agent says that the job runs\b", "the job runs"),
        (r"\bthe head shows work of this attempt\b", "the job worked there"),
        (r"\b(?:by the store )?(?:it )?owns the job already\b", "it has the job already"),
        (r"\bit was drained unsaved\b", "it left unsaved"),
        (r"\bhas drained by itself\b", "has saved the job and stopped by itself"),
        (r"\bthe present machine is gone\b", "its machine is gone"),
        (r"\bthe present machine\b", "its machine"),
        (r"\bgrant to attempt (\d+)", r"handing the job to machine #\1"),
        (r"\bwhat the agent of attempt (\d+) reports\b", r"what machine #\1 reports"),
        (r"\bthe agent of attempt (\d+)", r"machine #\1"),
        (r"\bit belongs to no attempt of ours\b", "it belongs to no job"),
        (r"\b(\d+) of (\d+) agents fell silent together\b", r"\1 of \2 machines stopped reporting together"),
        (r"\b(?:the )?head of (\S+) can't be read\b", r"the record of \1 in the store can't be read"),
        (r"\b(?i:attempt) (\d+)", r"machine #\1"),
        (r"\bstands by\b", "is ready"),
        (r"\bstandby\b", "ready"),
        (r"\bthe agent\b", "its machine"),
        (r"\bagents\b", "machines"),
        (r"\bnext machine is warm\b", "next machine has the newest checkpoint"),
        (r"\bdrained\b", "saved and left"),
        (r"\bsilent\b", "without news"),
        (r"\bholds it\b", "has it"),
        (r"\bdeadline would be at risk\b", "deadline might be missed"),
    )
)


def plainly(text: str) -> str:
    """A reason without the controller's own terms. Not for texts of users, which stay as they are."""
    for pattern, words in REASONS:
        text = pattern.sub(words, text)
    return text


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _number(data: Data, name: str) -> float | None:
    value = data.get(name)
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def _because(head: str, reason: str) -> str:
    return f"{head}: {plainly(reason)}" if reason else head


def _spent(data: Data) -> str:
    """The job's cost so far; its last machine, which is still being given back, may add to it after its end."""
    micros = _number(data, "usd_micros")
    return "" if micros is None else f"; {usd(int(micros))} USD so far"


def _per_hour(data: Data, name: str = "usd_micros_per_hour") -> str:
    micros = _number(data, name)
    return "" if micros is None else f" at {usd(int(micros))} USD an hour"


# ---- One function a kind


def _always(head: str, *, inner: bool = False) -> Saying:
    """`head`, and behind it the recorded reason in plain words."""
    return lambda text, _: Said(_because(head, text), inner)


def _users(head: str, *, inner: bool = False) -> Saying:
    """`head`, and behind it what the job or its user says, unchanged."""
    return lambda text, _: Said(f"{head}: {text}" if text else head, inner)


def _only(sentence: str, *, inner: bool = False) -> Saying:
    """The sentence alone: the recorded text says nothing more."""
    return lambda _text, _data: Said(sentence, inner)


def _plain(text: str, _: Data) -> Said:
    return Said(_capital(plainly(text)))


def _plain_inner(text: str, _: Data) -> Said:
    return Said(_capital(plainly(text)), inner=True)


def _planned(text: str, data: Data) -> Said:
    """`text`: market, pool and reason, as "spot aws/eu-1a/m6i.large: the job needs a machine"."""
    machine, _, reason = text.partition(": ")
    if not reason:  # taken up again from the store: there is only a reason
        return Said(_capital(plainly(text)))
    bought = machine_words(machine)
    others = data.get("rejected")
    not_taken = f". Not taken: {plainly(str(others))}" if others else ""
    return Said(f"Chose {bought}{_per_hour(data)}, because {plainly(reason)}{not_taken}")


def machine_words(text: str) -> str:
    """ "spot m6i.large in eu-1a (aws)" for "spot aws/eu-1a/m6i.large"; other texts stay as they are."""
    found = re.fullmatch(r"(spot|on-demand) ([^/\s]+)/(\S+)/([^/\s]+)", text)
    return f"{found[1]} {found[4]} in {found[3]} ({found[2]})" if found else text


def _refused(text: str, data: Data) -> Said:
    """`text`: reason, pool and wait, as "no capacity in a/b/c; a/b/c is left alone for 60 s"."""
    wait, (reason, _, left_alone) = _number(data, "wait_seconds"), text.rpartition("; ")
    if wait is None or "is left alone for" not in left_alone:
        return Said(_because("The cloud refused the order", text))
    return Said(
        f"The cloud refused the order: {plainly(reason)}; it is not asked for such a machine there for {duration(wait)}"
    )


def _granted(text: str, _: Data) -> Said:
    if text.startswith("has the job again"):
        return Said(_because("Comes back to this machine, which kept it", text.partition(": ")[2]))
    start = plainly(text.removeprefix("owns the job").removeprefix(", "))
    if start.startswith("from checkpoint"):
        return Said(f"Is brought back {start}")
    return Said(f"Starts {start}" if start else "Starts")


def _notice(text: str, data: Data) -> Said:
    left, kind = _number(data, "seconds_left"), str(data.get("kind", ""))
    if kind == "interruption":
        return Said(f"The cloud takes this machine back{'' if left is None else f' in {duration(left)}'}")
    heads = {"rebalance": "The cloud may take this machine soon", "retirement": "The cloud will retire this machine"}
    return Said(_because(heads.get(kind, "The cloud gave notice"), "" if text == kind else text))


def _step(text: str, data: Data) -> Said:
    return Said(f"Step {text}") if data.get("step") is not None else Said(f"Step: {text}")


def _saved(text: str, data: Data) -> Said:
    image, new = _number(data, "image_bytes"), _number(data, "new_bytes")
    frozen, durable = _number(data, "frozen_seconds"), _number(data, "durable_seconds")
    if image is None or new is None or frozen is None or durable is None:
        return Said(f"Saved: {text}")
    last = " for the last time here" if data.get("kind") == "final" else ""
    return Said(
        f"Saved{last}: {size(int(image))}, of which {size(int(new))} new; it stood still for {duration(frozen)}, "
        f"and was safe after {duration(durable)} (checkpoint {data.get('checkpoint')})"
    )


def _asked(text: str, data: Data) -> Said:
    want = str(data.get("want", ""))
    reason = text.removeprefix(want).removeprefix(": ")
    left = _number(data, "seconds_left")
    if want == "drain":
        head = "Is saved now and leaves its machine"
        if reason.startswith("suspended: "):
            reason = reason.removeprefix("suspended: ")
            head, reason = (
                (f"{head}, to be paused {reason}", "") if reason.startswith("by ") else (f"{head}, to be paused", reason)
            )
        return Said(_because(head, reason) + ("" if left is None else f", {duration(left)} left"))
    heads = {"run": "Its machine was told", "hurry": "The next machine was told"}
    return Said(_because(heads.get(want, "Its machine was told"), reason), inner=True)


def _moved(text: str, data: Data) -> Said:
    parts = [_number(data, f"{name}_seconds") for name in ("pause", "save", "handover", "restore")]
    spent = _spent(data)
    if any(p is None for p in parts):
        return Said(f"The job runs on after a move: {plainly(text)}{spent}")
    pause, save, handover, restore = (duration(p or 0.0) for p in parts)
    unseen = _number(data, "unseen_seconds") or 0.0
    waited = f", noticed {duration(unseen)} later" if unseen >= 1 else ""
    how = f"saved in {save}{waited}, handed over in {handover}, brought back in {restore}"
    return Said(f"The job runs on after a move: it stood still for {pause} ({how}){spent}")


def _fit(text: str, data: Data) -> Said:
    misfit = data.get("verdict") in ("late", "never")
    return Said(("If the cloud took its machine now: " if misfit else "Forecast: ") + text, inner=not misfit)


ORDERS = {
    "suspend": "asked to pause it: it is saved, and its machine given back",
    "resume": "lets it go on",
    "cancel": "cancels it",
    "checkpoint": "asked for a checkpoint",
    "outputs so far": "asked for its outputs so far",
}
ORDER = re.compile(r"(?s)(.*), asked by (.*)")


def _wish(text: str, data: Data) -> Said:
    if (order := ORDER.fullmatch(text)) is not None:
        what, who = order.groups()
        if what in ORDERS:
            return Said(_capital(f"{who} {ORDERS[what]}"))
        asked = f"asked for a {what}" if what.startswith("move") else f"asked to {what}" if what.startswith("go back") else ""
        return Said(_capital(f"{who} {asked}") if asked else f"{_capital(what)}, by {who}")
    if text == "moved":
        return Said("The move is done", inner=True)
    if data.get("wish") == "hold":  # the pause itself tells why
        return Said(_because("Will be paused", text), inner=True)
    return Said(_capital(plainly(text)))


def _price(_: str, data: Data) -> Said:
    before, now = _number(data, "usd_micros_per_hour_before"), _number(data, "usd_micros_per_hour")
    if before is None or now is None:
        return Said("The price of its machine changed", inner=True)
    way = "rose" if now > before else "fell"
    text = f"The price of its machine {way} from {usd(int(before))} to {usd(int(now))} USD an hour{_spent(data)}"
    return Said(text, inner=abs(now - before) < STEP_MIN * before)


STEP_MIN = 0.05  # of a price: smaller steps are told to those who ask for everything
# Errors of an agent after which the job could not go on: the step of its machine tells the same.
TOLD_BY_STEP = frozenset({"restore", "refused", "start", "image", "input", "secrets", "user"})
STATES = {  # of a job
    "held": "Paused",
    "active": "Goes on",
    "queued": "Waits for a machine",
    "succeeded": "Finished well",
    "failed": "Failed",
    "cancelled": "Cancelled",
}


def _ended(text: str, data: Data) -> Said:
    told, _, reason = text.partition(": ")
    state = str(data.get("state") or told)
    head = STATES.get(state, _capital(state) or "Changed")
    if state == "held" and reason.startswith("by "):
        return Said(f"Paused {reason}{_spent(data)}")
    same = reason in ("resumed", "cancelled")
    return Said(_because(head, "" if same else reason.removeprefix("cancelled ")) + _spent(data))


def _gone(reason: str, data: Data) -> Said:
    if data.get("from") == "releasing":
        return Said(f"The machine is given back{_spent(data)}")
    known = reason in ("", "the machine is gone")
    return Said("The machine is gone" if known else _capital(plainly(reason)))


def _started(_: str, data: Data) -> Said:
    took = _number(data, "restore_seconds")
    moved = _number(data, "pause_seconds") is not None  # the move's own moment tells the same, and more
    return Said("The job runs" if took is None else f"The job runs again; bringing it back took {duration(took)}", inner=moved)


def _left(reason: str, _: Data) -> Said:
    if "unsaved" in reason:
        return Said("Left its machine unsaved")
    kept = re.fullmatch(r"checkpoint (\S+) is final", reason)
    return Said(
        f"Left its machine: checkpoint {kept[1]} holds all of its work" if kept else _because("Left its machine", reason)
    )


def _withdrawn(reason: str, data: Data) -> Said:
    if data.get("from") in ("planned", "requested", "booting", "ready"):
        return Said(_because("The order of this machine is withdrawn", reason))
    return Said(_because("The machine is being given back", reason), inner=True)


# Steps of a machine's life (`model.state_machine`).
STEPS: dict[E, Saying] = {
    E.LAUNCH_ACCEPTED: _only("The cloud took the order", inner=True),
    E.LAUNCH_REFUSED: _always("The cloud refused the order", inner=True),
    E.INSTANCE_SEEN: _only("The machine starts up", inner=True),
    E.INSTANCE_GONE: _gone,
    E.AGENT_READY: _only("The machine is ready"),
    E.EPOCH_GRANTED: _always("The machine gets the job", inner=True),
    E.WORKLOAD_STARTED: _started,
    E.RESTORE_FAILED: _always("The job could not be brought back there"),
    E.STORE_FAILED: _always("The job could not start there"),
    E.RESTORE_REFUSED: _always("The machine can't go on with the checkpoint"),
    E.DRAIN_ASKED: _always("Is saved now and leaves its machine", inner=True),
    E.SAVE_FAILED: _always("The save failed, and the job runs on"),
    E.DRAIN_WITHDRAWN: _always("Stays on its machine"),
    E.FINAL_SAVED: _left,
    E.GIVEN_BACK: _always("The machine gets the job back", inner=True),
    E.WORKLOAD_EXITED: _always("Its command ended there", inner=True),
    E.SILENT: _always("No news from the machine, which is given up"),
    E.TERMINATE_CALLED: _withdrawn,
    E.SLOT_EMPTY: _always("Has left its machine, which is kept", inner=True),
}


def _attempt(text: str, data: Data) -> Said:
    event = str(data.get("event", ""))
    saying = STEPS.get(E(event)) if event in set(E) else None
    reason = text.removeprefix(event).removeprefix(": ")
    return Said(_capital(plainly(text)), inner=True) if saying is None else saying(reason, data)


KINDS: dict[str, Saying] = {
    Kind.SUBMITTED: _users("Submitted"),
    Kind.PLANNED: _planned,
    Kind.LAUNCHED: lambda text, _: Said(f"Ordered: {text.partition(' on ')[0]}"),
    Kind.REFUSED: _refused,
    Kind.ATTEMPT: _attempt,
    Kind.GRANTED: _granted,
    Kind.NOTICE: _notice,
    Kind.STEP: _step,
    Kind.STAGE: _users("The job says"),
    Kind.SAVED: _saved,
    Kind.ASKED: _asked,
    Kind.PACED: _plain_inner,
    Kind.MOVED: _moved,
    Kind.FIT: _fit,
    Kind.WISH: _wish,
    Kind.PRICE: _price,
    Kind.RETRY: _always("Its command failed and is tried again"),
    Kind.FROZEN: _only("Stopped for a while: its machine is cut off, and can't be sure that the job is still its own"),
    Kind.THAWED: _only("Goes on: its machine knows that the job is still its own"),
    Kind.NEAR_MISS: _always("Almost out of memory"),
    Kind.OUT_OF_MEMORY: _always("Out of memory"),
    Kind.BROUGHT_BACK: _plain,
    Kind.STUCK: lambda text, data: Said(_because("Makes no progress" if data.get("stuck") else "Is stuck no more", text)),
    Kind.BUDGET: _plain,
    Kind.PROVEN: _plain_inner,
    Kind.DROPPED: _plain_inner,
    Kind.FORKED: _plain,
    Kind.REHEARSED: _plain,
    Kind.ENDED: _ended,
    Kind.HOOK: _users("The command for its end"),
    Kind.MACHINE: _always("A machine that nobody used was ended"),
    Kind.SWEPT: _always("A machine without a job was ended"),
    Kind.ALERT: lambda text, data: Said(_because("Trouble", text), inner=data.get("error_kind") in TOLD_BY_STEP),
    Kind.CONTROLLER: _always("The controller"),
}


# ---- Outcomes of actions, as decisions keep them (`Why.done`): the same sentences


def outcome(text: str) -> Said:
    """The sentence of what was done."""
    head, _, reason = text.partition(": ")
    if head in set(E):
        return _attempt(text, {"event": head})
    if head in STATES or head in JOB_EVENTS:
        return _ended(f"{JOB_EVENTS.get(head, head)}: {reason}", {})
    if head in ("drain", "run", "hurry"):
        return _asked(text, {"want": head})
    if head == "terminate":
        return Said(_because("The machine is given back", reason), inner=True)
    if text.startswith(("owns the job", "has the job again")):
        return _granted(text, {})
    if machine_words(head) != head:
        return _planned(text, {})
    if " is left alone for " in text:
        return Said(_because("The cloud refused the order", text))
    return Said(_capital(plainly(text)))


JOB_EVENTS = {"resumed": "active", "attempt planned": "active", "reopened": "active"}  # of a job -> its state then
