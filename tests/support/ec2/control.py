"""Orders to the test EC2, over HTTP, from the test that started it: `POST /_test/<op>` with JSON.

    rule        fields of `rules.Rule`: one more rule            rules     {"clear": true}
    capacity    pool, count, market?: room in pools              price     pool, usd, in_seconds?: a step of the spot price
    on_demand   type, usd                                        quota     code, value
    rebalance   instance                                         set       pending_, shutdown_, unlisted_, skew_seconds
    interrupt   instance, notice_seconds
    crash       instance: its hardware dies, EC2 does not notice parameter name, value: an SSM parameter
    expire      role (its name): its sessions are over
    event       source, detail_type, detail, resources?          log       {"clear": true}

A pool is "zone/type" with wildcards. `GET`: log (`?` none: all calls), machines, state, info.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from moto.events.models import events_backends
from moto.ssm.models import ssm_backends
from support.ec2 import calllog
from support.ec2.cloud import ACCOUNT, Cloud
from support.ec2.machines import Machine
from support.ec2.market import Room, Step
from support.ec2.rules import Rule
from support.ec2.wire import Answer

Order = Callable[[Cloud, Mapping[str, Any]], Any]


def control(cloud: Cloud, method: str, name: str, body: bytes) -> Answer:
    """Do one order, or answer one question."""
    table = _QUESTIONS if method == "GET" else _ORDERS
    if name not in table:
        return _json(404, {"error": f"no order {name!r}; there are {', '.join(sorted(table))}"})
    try:
        return _json(200, table[name](cloud, json.loads(body or b"{}")))
    except (KeyError, TypeError, ValueError) as e:
        return _json(400, {"error": f"{type(e).__name__}: {e}"})


def _rule(cloud: Cloud, o: Mapping[str, Any]) -> None:
    cloud.rules.add(Rule(**o))


def _rules(cloud: Cloud, o: Mapping[str, Any]) -> None:
    cloud.rules.clear()


def _capacity(cloud: Cloud, o: Mapping[str, Any]) -> None:
    market, pool = o.get("market", "spot"), str(o["pool"])
    kept = [r for r in cloud.market.rooms if (r.pool, r.market) != (pool, market)]
    cloud.market.rooms = kept if o["count"] is None else [*kept, Room(pool, market, int(o["count"]))]


def _price(cloud: Cloud, o: Mapping[str, Any]) -> None:
    at = cloud.now() + timedelta(seconds=float(o.get("in_seconds", 0)))
    cloud.market.steps.append(Step(str(o["pool"]), at, Decimal(str(o["usd"]))))


def _on_demand(cloud: Cloud, o: Mapping[str, Any]) -> None:
    cloud.market.on_demand[str(o["type"])] = Decimal(str(o["usd"]))


def _quota(cloud: Cloud, o: Mapping[str, Any]) -> None:
    cloud.market.quotas[str(o["code"])] = float(o["value"])


def _set(cloud: Cloud, o: Mapping[str, Any]) -> None:
    for name, value in o.items():
        if name not in ("pending_seconds", "shutdown_seconds", "unlisted_seconds", "skew_seconds"):
            raise ValueError(f"no setting {name!r}")
        setattr(cloud, name, float(value))


def _machine(cloud: Cloud, o: Mapping[str, Any]) -> Machine:
    return cloud.machines[str(o["instance"])]


def _event(cloud: Cloud, o: Mapping[str, Any]) -> None:
    entry = {
        "Source": o["source"],
        "DetailType": o["detail_type"],
        "Detail": json.dumps(o["detail"]),
        "Resources": o.get("resources", []),
    }
    events_backends[ACCOUNT][o.get("region", "us-east-1")].put_events([entry])


def _parameter(cloud: Cloud, o: Mapping[str, Any]) -> None:
    backend = ssm_backends[ACCOUNT][o.get("region", "us-east-1")]
    backend.put_parameter(
        name=o["name"], description="", value=o["value"], parameter_type="String", allowed_pattern="", keyid="", overwrite=True,
        tags=[], data_type="text", tier=None, policies=None,
    )  # fmt: skip


def _show_machine(cloud: Cloud, machine: Machine) -> dict[str, Any]:
    row = dataclasses.asdict(machine)
    row.pop("shape")
    return {**row, "zone": machine.zone, "type": machine.kind, "tags": cloud.tags(machine.region, machine.id)}


_ORDERS: Mapping[str, Order] = {
    "rule": _rule,
    "rules": _rules,
    "capacity": _capacity,
    "price": _price,
    "on_demand": _on_demand,
    "quota": _quota,
    "set": _set,
    "rebalance": lambda cloud, o: cloud.rebalance(_machine(cloud, o)),
    "interrupt": lambda cloud, o: cloud.interrupt(_machine(cloud, o), float(o["notice_seconds"])),
    "crash": lambda cloud, o: cloud.crash(_machine(cloud, o)),
    "expire": lambda cloud, o: calllog.expire(str(o["role"]), cloud.now()),
    "event": _event,
    "parameter": _parameter,
    "log": lambda cloud, o: cloud.log.clear(),
}
_QUESTIONS: Mapping[str, Order] = {
    "log": lambda cloud, o: cloud.log.since(),
    "machines": lambda cloud, o: [_show_machine(cloud, x) for x in cloud.machines.values()],
    "info": lambda cloud, o: cloud.info,
}


def _json(status: int, value: Any) -> Answer:
    body = json.dumps(value, default=str).encode()
    return Answer(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))], body)
