"""`budget`: what one job may cost, and what the jobs of a scope (an owner, a tag, a project, all) may cost together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from spotsurfer.cli.common import SESSION, JobArgument, examples
from spotsurfer.cli.printing import money, put, put_json, say, table, tell, when
from spotsurfer.common.units import parse_usd
from spotsurfer.model.budgets import SCOPES_TEXT, Per
from spotsurfer.model.errors import UsageError
from spotsurfer.web.client import job_path

ScopeArgument = Annotated[str, typer.Argument(metavar="SCOPE", help=f"{SCOPES_TEXT}.", show_default=False)]
PerOption = Annotated[Per, typer.Option("--per", help="How long the amount is to last; by the calendar, in UTC.")]


class BudgetGroup(TyperGroup):
    """`budget JOB USD` is about one job: what is no other command is a job's name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command and its arguments."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["job", *args])


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    text = "Say what one job may cost (JOB USD), or all of an owner, a tag, a project together: list, set, remove."
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        cls=BudgetGroup,
        help=text,
        epilog=examples("spotsurfer budget assembly-3f9a1c 25", "spotsurfer budget set owner:ada 200 --per month"),
    )
    group.command(
        "job",
        epilog=examples("spotsurfer budget assembly-3f9a1c 25", "spotsurfer budget job assembly-3f9a1c none"),
        context_settings={"ignore_unknown_options": True},  # a number below zero is none
    )(of_job)
    group.command("list", epilog=examples("spotsurfer budget list"))(list_budgets)
    sets = ("spotsurfer budget set owner:ada 200 --per month", "spotsurfer budget set tag:run=7 50 --warn-at 80,90")
    group.command("set", epilog=examples(*sets))(set_budget)
    group.command("remove", epilog=examples("spotsurfer budget remove owner:ada --per month"))(remove)
    app.add_typer(group, name="budget")


def of_job(
    job: JobArgument,
    usd: Annotated[str, typer.Argument(metavar="USD", help="US dollars in all, like 25 or 0.50; or none.", show_default=False)],
) -> None:
    """Change what the job may cost in all; it is held before that is passed. One that is held for it wants `resume`, too."""
    wanted = None if usd == "none" else _amount(usd, ", or none")
    answer = SESSION.client().put(job_path(job, "budget"), {"usd_micros": wanted})
    limit = f"may cost {money(wanted)} USD in all from now on" if wanted is not None else "has no budget of its own any more"
    say(answer, f"{answer['job']} {limit}.")


def list_budgets() -> None:
    """Show budgets of several jobs: what was spent of them, and how many jobs they hold."""
    found = SESSION.client().get("/v1/budgets")["budgets"]
    put_json({"budgets": found})
    if not found:
        put("There are no budgets of several jobs: `spotsurfer budget set SCOPE USD` makes one.")
        return
    heads = ["scope", "per", "budget", "spent", "share", "warns at", "until", "holds"]
    table(heads, [_row(b) for b in found])


def _row(b: dict[str, Any]) -> list[str]:
    shares = ", ".join(map(str, b["warn_at"]))
    holds = f"{len(b['held'])} jobs" if b["used_up"] else "-"
    until = when(b["ends"]) if b["ends"] else "-"
    share = f"{b['percent']:.0f} %"
    return [b["scope"], b["per"], money(b["usd_micros"]), money(b["spent_usd_micros"]), share, f"{shares or '-'}", until, holds]


def set_budget(
    scope: ScopeArgument,
    usd: Annotated[str, typer.Argument(metavar="USD", help="US dollars, like 25 or 0.50.", show_default=False)],
    *,
    per: PerOption = Per.TOTAL,
    warn_at: Annotated[
        str | None,
        typer.Option(
            "--warn-at", metavar="PERCENT", help="Warn once each, like 50,80; or none. Default: 50,80,100, or as before."
        ),
    ] = None,
) -> None:
    """Set what all jobs of a scope may cost together, once or in each day, week or month (operators).

    When it is used up, its jobs are saved and suspended, and go on by themselves in the next time or when it is raised.
    """
    wanted = {"scope": scope, "usd_micros": _amount(usd), "per": str(per), "warn_at": _shares(warn_at)}
    answer = SESSION.client().put("/v1/budgets", wanted)
    time = "in all" if per is Per.TOTAL else f"per {per}"
    whom = "All jobs together" if answer["scope"] == "all" else f"All of {answer['scope']}"
    say(answer, f"{whom} may cost {money(answer['usd_micros'])} USD {time} from now on.")


def remove(scope: ScopeArgument, *, per: PerOption = Per.TOTAL) -> None:
    """Remove a budget that was set; one of the configuration counts again then (operators)."""
    answer = SESSION.client().delete("/v1/budgets", scope=scope, per=str(per))
    put_json(answer)
    put(f"The budget of {scope} ({per}) is removed.")
    if answer["again"]:
        tell(f"That of the configuration counts again: {money(answer['again']['usd_micros'])} USD.")


def _amount(text: str, more: str = "") -> int:
    try:
        return parse_usd(text)
    except ValueError as e:
        raise UsageError(f"The budget {e}{more}.") from None


def _shares(text: str | None) -> Sequence[int] | None:
    if text is None or text == "none":
        return None if text is None else []
    try:
        return [int(part.strip().removesuffix("%")) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--warn-at is {text!r}, expected percent like 50,80 or none.") from None
