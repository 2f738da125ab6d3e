"""The tables. Times are UTC ISO text, money micro-dollars, nested values JSON."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text

metadata = MetaData()

meta = Table("meta", metadata, Column("key", String, primary_key=True), Column("value", Text, nullable=False))

job = Table(
    "job",
    metadata,
    Column("id", String, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("wish", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("held_by", String, nullable=False, server_default=""),
    Column("submitted_at", String, nullable=False),
    Column("ended_at", String),
    Column("exit_code", Integer),
    Column("failures", Integer, nullable=False),
    Column("save_at_least", Integer, nullable=False),
    Column("moves_asked", Integer, nullable=False),
    Column("move", JSON),
    Column("resumed_at", String),
    Column("rewind", JSON),
    Column("parent", JSON),
    Column("owner", String, nullable=False, server_default="", index=True),
    Column("lineage", String, nullable=False, server_default=""),
    Column("partials_asked", Integer, nullable=False, server_default="0"),
    Column("stuck_since", String),
    Column("signals_asked", Integer, nullable=False, server_default="0"),
    Column("signal", String, nullable=False, server_default=""),
    Column("number", Integer, nullable=False, server_default="0", index=True),
    Column("array", String, nullable=False, server_default=""),
    Column("task", Integer),
    Column("begins_at", String),
    Column("ended_by", String, nullable=False, server_default=""),
    Column("spec", JSON, nullable=False),
    # Of the specification, so that many rows can be chosen, ordered and listed without reading theirs.
    Column("name", String, nullable=False, server_default=""),
    Column("project", String, nullable=False, server_default=""),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("cpus", Integer, nullable=False, server_default="0"),
    Column("memory_bytes", BigInteger, nullable=False, server_default="0"),
    Column("gpus", Integer, nullable=False, server_default="0"),
    Column("time_limit_seconds", Float),
    Column("array_limit", Integer, nullable=False, server_default="0"),
    Column("pressing", Boolean, nullable=False, server_default="0"),  # it has a deadline
    Column("shape", String, nullable=False, server_default=""),  # jobs of one shape fit the same machines
    Column("waits_for", String, nullable=False, server_default=""),  # before it may have its first machine: state/queue.py
    Index("ix_job_array", "array", "state", "submitted_at"),
    Index("ix_job_name", "name", "owner"),
    Index("ix_job_limited", "state", "wish", "waits_for", "array", "array_limit"),
    Index("ix_job_pressing", "pressing", "state"),
    Index("ix_job_queue", "state", "wish", "waits_for", "shape", "priority", "submitted_at", "id"),
)

# What must come before a queued job. A row goes when it is fulfilled. `on`: a job or array, or name and owner of a singleton.
dependency = Table(
    "dependency",
    metadata,
    Column("job", String, primary_key=True),
    Column("kind", String, primary_key=True),
    Column("on", String, primary_key=True),
    Column("never", Text, nullable=False),  # why it can't be fulfilled any more; "" = it can
    Index("ix_dependency_on", "on", "kind"),
)

attempt = Table(
    "attempt",
    metadata,
    Column("job", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("since", String, nullable=False),
    Column("token", String, nullable=False, index=True),
    Column("planned_at", String, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("for_move", Integer, nullable=False),
    Column("granted_at", String),
    Column("from_checkpoint", String),
    Column("head_number", Integer, nullable=False),
    Column("desired_sequence", Integer, nullable=False),
    Column("desired_want", String, nullable=False),
    Column("desired_save", Integer, nullable=False),
    Column("desired_partial", Integer, nullable=False, server_default="0"),
    Column("signals_told", Integer, nullable=False, server_default="0"),
    Column("signal", String, nullable=False, server_default=""),
    Column("launched_at", String),
    Column("released_at", String),
    Column("restore_failed", Boolean, nullable=False),
    Column("store_failed", Boolean, nullable=False, server_default="0"),
    Column("restore_refused", Boolean, nullable=False, server_default="0"),
    Column("reclaimed", Boolean, nullable=False),
    Column("pause_seconds", Float),
    Column("drained", Boolean, nullable=False, server_default="0"),
    Column("pace_seconds", Float),
    Column("pace_saves", Integer, nullable=False, server_default="-1"),
    Column("pace_why", Text, nullable=False, server_default=""),
    Column("gave_way_to", String, nullable=False, server_default=""),
    Column("lease_seconds", Float),
    Column("slot", Integer, nullable=False, server_default="0"),
)

# What is bought. Attempts refer to it by its launch token.
machine = Table(
    "machine",
    metadata,
    Column("token", String, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("since", String, nullable=False),
    Column("pool", JSON, nullable=False),
    Column("market", String, nullable=False),
    Column("price_usd_micros_per_hour", BigInteger, nullable=False),
    Column("list_price_usd_micros_per_hour", BigInteger, nullable=False),
    Column("owner", String, nullable=False, server_default=""),
    Column("cpus", Integer, nullable=False, server_default="0"),
    Column("memory_bytes", BigInteger, nullable=False, server_default="0"),
    Column("gpus", Integer, nullable=False, server_default="0"),
    Column("disk_bytes", BigInteger, nullable=False, server_default="0"),
    Column("public_address", Boolean, nullable=False, server_default="0"),
    Column("keep_seconds", Float, nullable=False, server_default="0"),
    Column("slots", Integer, nullable=False, server_default="1"),
    Column("instance", String),
    Column("launched_at", String),
    Column("released_at", String),
    Column("idle_since", String),
    Column("reclaimed", Boolean, nullable=False, server_default="0"),
    Column("reason", Text, nullable=False, server_default=""),
)

# The port of the controller's host for each port of a job: the same one for as long as the job lives.
front = Table(
    "front",
    metadata,
    Column("job", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("listens", Integer, nullable=False, unique=True),
)

# Intents: written before the effect, finished after it. At start-up an open entry is done again.
journal = Table(
    "journal",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("action", String, nullable=False, index=True),
    Column("begun_at", String, nullable=False),
    Column("finished_at", String, index=True),
    Column("outcome", Text),
)

moment = Table(
    "moment",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("at", String, nullable=False),
    Column("job", String, index=True),
    Column("attempt", Integer),
    Column("kind", String, nullable=False),
    Column("text", Text, nullable=False),
    Column("data", JSON, nullable=False),
)

decision = Table(
    "decision",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("at", String, nullable=False),
    Column("job", String, nullable=False, index=True),
    Column("done", JSON, nullable=False),
    Column("rejected", JSON, nullable=False),
    Column("note", Text, nullable=False),
)

cooldown = Table(
    "cooldown",
    metadata,
    Column("pool", String, primary_key=True),
    Column("market", String, primary_key=True),
    Column("doc", JSON, nullable=False),
)

# Notices about instances, from an agent or the cloud's queue of events, whichever is first; `at` is on our clock.
sighting = Table(
    "sighting",
    metadata,
    Column("instance", String, primary_key=True),
    Column("sign", String, primary_key=True),
    Column("at", String, nullable=False),
    Column("text", Text, nullable=False),
)

# Whether spot was available in a pool: a row per change; `up` is empty if that became unknown.
spot_seen = Table(
    "spot_seen",
    metadata,
    Column("pool", String, primary_key=True),
    Column("at", String, primary_key=True),
    Column("up", Boolean),
)

# The price of an attempt's machine from a moment on; the bill is the sum over these steps.
price = Table(
    "price",
    metadata,
    Column("job", String, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("at", String, primary_key=True),
    Column("usd_micros_per_hour", BigInteger, nullable=False),
)

# The last report of each attempt: usage and frozen time outlive the machine.
usage = Table(
    "usage",
    metadata,
    Column("job", String, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("at", String, nullable=False),
    Column("cpu_seconds", Float, nullable=False),
    Column("frozen_seconds", Float, nullable=False),
    Column("saves", Integer, nullable=False),
    Column("doc", JSON, nullable=False),
)

# A job's usage within ten seconds of an attempt, or (older ones) within `slices` times that; `row` as in
# `spotsurfer_wire.usage.Window`, `at` its beginning on our clock.
usage_window = Table(
    "usage_window",
    metadata,
    Column("job", String, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("at", String, nullable=False, index=True),
    Column("slices", Integer, nullable=False),
    Column("row", JSON, nullable=False),
)

# Who may use the API over TCP. The secret of a token is kept as a digest alone.
token = Table(
    "token",
    metadata,
    Column("id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("role", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("made_at", String, nullable=False),
    Column("expires_at", String),
    Column("used_at", String),
    Column("revoked_at", String),
)

# Who did what, or was refused it: append-only.
audit = Table(
    "audit",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("at", String, nullable=False, index=True),
    Column("who", String, nullable=False, index=True),
    Column("role", String, nullable=False),
    Column("via", String, nullable=False),
    Column("address", String, nullable=False),
    Column("what", String, nullable=False),
    Column("job", String, nullable=False, index=True),
    Column("status", Integer, nullable=False),
)

# The bytes of a job's checkpoints in the store from a moment on: a row per change.
stored = Table(
    "stored",
    metadata,
    Column("job", String, primary_key=True),
    Column("at", String, primary_key=True, index=True),
    Column("bytes", BigInteger, nullable=False),
)

# What an attempt's agent had counted at the end of each UTC day on which it reported; `at` is its last report of that day.
counted = Table(
    "counted",
    metadata,
    Column("job", String, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("day", String, primary_key=True),
    Column("at", String, nullable=False, index=True),
    Column("read_bytes", BigInteger, nullable=False),
    Column("sent_bytes", BigInteger, nullable=False),
    Column("gets", BigInteger, nullable=False),
    Column("puts", BigInteger, nullable=False),
)

# Budgets of several jobs that were set by command; one of the configuration with the same scope and time does not count then.
budget = Table(
    "budget",
    metadata,
    Column("scope", String, primary_key=True),
    Column("per", String, primary_key=True),
    Column("usd_micros", BigInteger, nullable=False),
    Column("warn_at", JSON, nullable=False),
    Column("set_at", String, nullable=False),
    Column("set_by", String, nullable=False),
)

# What a budget told of the day, week or month that begins then ("" = of all time): shares in percent, 0 = it is used up; and
# its amount at that time. A larger amount is told of anew.
budget_told = Table(
    "budget_told",
    metadata,
    Column("scope", String, primary_key=True),
    Column("per", String, primary_key=True),
    Column("begins", String, primary_key=True),
    Column("share", Integer, primary_key=True),
    Column("usd_micros", BigInteger, nullable=False),
    Column("at", String, nullable=False),
)
