"""`whoami`, `token` and `audit`: who may use the controller, and who did."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from spotsurfer.cli.common import SESSION, examples, moment_of
from spotsurfer.cli.printing import put, put_json, table, tell, when
from spotsurfer.common.units import parse_seconds
from spotsurfer.model.access import Role
from spotsurfer.model.errors import UsageError

MAY = {
    Role.VIEWER: "see everything, change nothing",
    Role.USER: "see and change your own jobs",
    Role.OPERATOR: "see and change everything",
}


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(epilog=examples("spotsurfer whoami"))(whoami)
    token = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Let people in: make, list, revoke (operators).",
        epilog=examples("spotsurfer token make ada", "spotsurfer token list", "spotsurfer token revoke 3fa1b2c4"),
    )
    token.command(epilog=examples("spotsurfer token make ada", "spotsurfer token make grafana --role viewer --expires 365d"))(
        make
    )
    token.command("list", epilog=examples("spotsurfer token list"))(list_tokens)
    token.command(epilog=examples("spotsurfer token revoke 3fa1b2c4"))(revoke)
    app.add_typer(token, name="token")
    app.command(epilog=examples("spotsurfer audit --since 7d", "spotsurfer audit --who ada --job assembly-3f9a1c"))(audit)


def whoami() -> None:
    """Say who you are for the controller, and what you may do."""
    found = SESSION.client().get("/v1/me")
    put_json(found)
    put(f"You are {found['name']} ({found['via']}), {found['role']}: you may {MAY[Role(found['role'])]}.")


def make(
    owner: Annotated[str, typer.Argument(metavar="NAME", help="Who gets it; it owns the jobs that are submitted with it.")],
    *,
    role: Annotated[Role, typer.Option(help="What it lets them do.")] = Role.USER,
    expires: Annotated[str | None, typer.Option(metavar="TIME", help="It ends by itself then, e.g. 90d.")] = None,
) -> None:
    """Make a token and print it, once: the controller keeps nothing that it could be read from."""
    try:
        lives = None if expires is None else parse_seconds(expires)
    except ValueError as e:
        raise UsageError(f"--expires {e}.") from None
    made = SESSION.client().post("/v1/tokens", {"owner": owner, "role": role.value, "lives_seconds": lives})
    put_json(made)
    put(made["text"])
    tell(f"{owner} sets SPOTSURFER_TOKEN to it, and SPOTSURFER_URL. It can't be shown again; end it by")
    tell(f"  spotsurfer token revoke {made['token']['id']}")


def list_tokens() -> None:
    """Show all tokens, the newest first, without their secrets."""
    found = SESSION.client().get("/v1/tokens")["tokens"]
    put_json({"tokens": found})
    if not found:
        put("There are no tokens: `spotsurfer token make NAME` makes one.")
        return
    rows = [[t["id"], t["owner"], t["role"], _at(t["made_at"]), _at(t["used_at"]), _ends(t)] for t in found]
    table(["id", "owner", "role", "made", "last used", "ends"], rows)


def revoke(id: Annotated[str, typer.Argument(metavar="ID", help="As `token list` shows it.")]) -> None:
    """End a token at once."""
    client = SESSION.client()
    client.delete(f"/v1/tokens/{quote(id, safe='')}")
    put_json({"revoked": id})
    put(f"Token {id} opens nothing any more.")


def audit(
    since: Annotated[str | None, typer.Option(help="Only since then: so long ago, like 7d, or a date.")] = None,
    who: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this person.")] = None,
    job: Annotated[str | None, typer.Option(metavar="JOB", help="Only about this job, as it was named.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 100,
) -> None:
    """Say who changed what, and who was refused it (operators)."""
    start = moment_of(since).isoformat() if since is not None else None
    found = SESSION.client().get("/v1/audit", since=start, who=who, job=job, last=limit)["lines"]
    put_json({"lines": found})
    if not found:
        put("Nobody changed anything in that time, and nobody was refused.")
        return
    rows = [[when(x["at"]), x["who"], x["role"], _from(x), x["what"], x["job"], _outcome(x["status"])] for x in found]
    table(["at", "who", "role", "from", "what", "job", "outcome"], rows)


def _at(text: str | None) -> str:
    return "-" if text is None else when(text)


def _ends(token: dict[str, Any]) -> str:
    return f"revoked {when(token['revoked_at'])}" if token["revoked_at"] else _at(token["expires_at"])


def _from(line: dict[str, Any]) -> str:
    return f"{line['via']} {line['address']}".strip()


def _outcome(status: int) -> str:
    return "done" if status < 400 else "refused" if status in (401, 403) else f"failed ({status})"
