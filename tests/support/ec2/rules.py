"""What is to go wrong: rules that meet calls before (or after) they are done."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from support.ec2.wire import Answer, Call


@dataclass
class Rule:
    """`times` calls (-1: all) of an action whose parameters match get an error, or an answer that is spoilt.

    `match` compares flat parameters ("InstanceMarketOptions.MarketType": "spot") by shell wildcards. With `after` the call is
    done and its answer replaced by the error: the client can't know that it was done. `replace` are pairs of expression and
    replacement for the answer's text. `delay_seconds` comes before all of it.
    """

    action: str
    service: str = "ec2"
    match: Mapping[str, str] = field(default_factory=dict)
    code: str | None = None
    message: str = "made by a test"
    status: int = 400
    times: int = 1
    after: bool = False
    replace: list[list[str]] = field(default_factory=list)
    delay_seconds: float = 0.0


class Rules:
    """The rules that hold now."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []
        self._lock = threading.Lock()

    def add(self, rule: Rule) -> None:
        """One more; older ones are asked first."""
        with self._lock:
            self._rules.append(rule)

    def clear(self) -> None:
        """None any more."""
        with self._lock:
            self._rules.clear()

    def take(self, call: Call) -> Rule | None:
        """The first rule that meets a call, used up by one."""
        with self._lock:
            for rule in self._rules:
                if rule.times != 0 and _meets(rule, call):
                    rule.times -= 1
                    return rule
        return None


def spoil(rule: Rule, answer: Answer) -> Answer:
    """An answer after the rule's replacements."""
    text = answer.body.decode()
    for expression, instead in rule.replace:
        text = re.sub(expression, instead, text, flags=re.DOTALL)
    body = text.encode()
    headers = [(k, v) for k, v in answer.headers if k.lower() != "content-length"]
    return Answer(answer.status, [*headers, ("Content-Length", str(len(body)))], body)


def _meets(rule: Rule, call: Call) -> bool:
    if rule.service != call.service or not fnmatchcase(call.action, rule.action):
        return False
    return all(fnmatchcase(call.flat.get(k, ""), v) for k, v in rule.match.items())
