"""Scenes with a store behind a link of 1 Gbit/s."""

from __future__ import annotations

from typing import Any

from support.link import BITS_PER_SECOND, link

from bench.scenes import kit, restores
from bench.scenes.kit import Runner

Figures = dict[str, Any]


def upload(size: str) -> Figures:
    """First live saves of noise through the link: how much of its rate is used from the order until it is durable."""
    rounds = []
    with link() as way:
        run = Runner(way.url, way.options)
        run.start("stamped", int(size), 100)
        for number in range(kit.ROUNDS):
            run.forget()
            before = way.sent_bytes
            freeze, facts = run.gap(run.save)
            sent = way.sent_bytes - before
            rounds.append({
                "durable": facts.durable_seconds, "wire_bytes": sent, "freeze": freeze, "image_bytes": facts.image_bytes,
                "use": sent * 8 / BITS_PER_SECOND / run.ordered_seconds, "ordered": run.ordered_seconds,
            })  # fmt: skip
            kit.say(f"round {number + 1} of {kit.ROUNDS}: {rounds[-1]}")
        run.engine.kill()
    return {"rounds": rounds}


def download(size: str) -> Figures:
    """Lazy restores through the link."""
    rounds = []
    with link() as way:
        run = Runner(way.url, way.options)
        run.start("stamped", int(size), 50)
        run.forget()
        run.save(final=True)
        for number in range(kit.ROUNDS):
            run.engine.kill()
            rounds.append(restores.one(run, lazy=True))
            kit.say(f"round {number + 1} of {kit.ROUNDS}: {rounds[-1]}")
        run.engine.kill()
    return {"rounds": rounds}
