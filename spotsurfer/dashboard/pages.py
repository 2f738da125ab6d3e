"""The pages: what each shows, and the forms. Nothing here decides who may see what: the service behind the guard does."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from spotsurfer.dashboard import drawing, fleet, live, one_job, pools
from spotsurfer.dashboard.actions import ACTIONS, Action, fitting
from spotsurfer.dashboard.costs import BY, Months
from spotsurfer.dashboard.site import (
    BACK,
    HEADERS,
    KINDS,
    SIGN_IN,
    STATIC,
    Site,
    form_of,
    is_secure,
    job_url,
    moved,
    safe_place,
    session_of,
    with_session,
    with_sign_in,
)
from spotsurfer.dashboard.words import GROUPS, told
from spotsurfer.model.access import DENIED, Use, may
from spotsurfer.model.actions import Preview
from spotsurfer.model.errors import Conflict, Denied, NotFound, SpotsurferError
from spotsurfer.model.job import ENDED, JobId
from spotsurfer.model.queueing.arrays import jobs_of_row
from spotsurfer.ports.service import Checkpoint, JobStatus, LogAsk, LogPart, Moment, Progress, Service

LATELY = 12  # moments on the fleet's page
CHECKPOINTS_SECONDS, CHECKPOINTS_KEPT = 60, 200  # a list costs a request to the store for each checkpoint
LOG_LINES, LOG_OLD_SECONDS = 200, 5.0
WORKS = {"stats": "Add up sizes", "check": "Check that everything is there"}


class Page(APIRoute):
    """Errors of ours become pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """With the errors."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except SpotsurferError as e:
                return site_of(request).trouble(request, e)

        return handled


router = APIRouter(route_class=Page, include_in_schema=False)


def mount(app: FastAPI, site: Site) -> None:
    """Add the pages to the application."""
    app.state.site, app.state.months = site, Months(site.now)
    app.include_router(router)
    app.include_router(live.router)


def site_of(request: Request) -> Site:
    """What the application gave us."""
    site: Site = request.app.state.site
    return site


# ---- Login and static files


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Style sheet, script and icon."""
    if name not in STATIC:
        raise NotFound("There is no such file.")
    kind = KINDS["." + name.rpartition(".")[2]]
    return Response(STATIC[name][0], media_type=kind, headers={**HEADERS, "Cache-Control": "max-age=31536000, immutable"})


@router.get("/login")
def login_page(request: Request) -> Response:
    """Asks for a token."""
    site, place = site_of(request), safe_place(request.query_params.get("next", "/"))
    return site.page(request, "login.html", place=place, wrong=False, provider=site.provider())


@router.post("/login")
async def login(request: Request) -> Response:
    """Begins a session, with a new name. A login that another site sends is refused by the guard."""
    site, form = site_of(request), await form_of(request)
    place, token = safe_place(form.get("next", "/")), form.get("token", "").strip()
    who = await run_in_threadpool(site.by_token, token) if site.by_token is not None and token else None
    if who is None:
        return site.page(request, "login.html", 401, place=place, wrong=True, provider=site.provider())
    site.sessions.end(session_of(request))
    return with_session(moved(place), site.sessions.begin(token), is_secure(request))


@router.get("/login/provider")
def sign_in(request: Request) -> Response:
    """Sends the browser to the provider."""
    site = site_of(request)
    if (provider := site.provider()) is None:
        raise NotFound("Nobody signs in elsewhere here: /login takes a token.")
    base = site.public_url() or str(request.base_url)
    place, state = provider.begin(base.rstrip("/") + BACK, safe_place(request.query_params.get("next", "/")))
    return with_sign_in(RedirectResponse(place, 303, {**HEADERS, "Referrer-Policy": "no-referrer"}), state, is_secure(request))


@router.get(BACK)
def signed_in(request: Request) -> Response:
    """Begins a session for who comes back. Its page leads on: browsers send no strict cookie when another site led here."""
    site = site_of(request)
    if (provider := site.provider()) is None:
        raise NotFound("Nobody signs in elsewhere here: /login takes a token.")
    base = (site.public_url() or str(request.base_url)).rstrip("/")
    token, place = provider.finish(f"{base}{BACK}?{request.url.query}", request.cookies.get(SIGN_IN, ""))
    site.sessions.end(session_of(request))
    page = site.page(request, "signed_in.html", place=place)
    return with_sign_in(with_session(page, site.sessions.begin(token), is_secure(request)), "", is_secure(request))


@router.post("/logout")
async def logout(request: Request) -> Response:
    """Ends the session."""
    site = site_of(request)
    site.check(request, await form_of(request))
    site.sessions.end(session_of(request))
    return with_session(moved("/login"), "", is_secure(request))


# ---- Pages


def newest(service: Service) -> int:
    """Number of the newest moment that one may see: events come from there on."""
    return max((number for number, _ in service.timeline(None, last=1)), default=0)


@router.get("/")
def fleet_page(request: Request) -> Response:
    """All jobs."""
    site, service = site_of(request), site_of(request).service(request)
    asked = fleet.Asked.of(request.query_params)
    lately = service.timeline(None, last=LATELY)
    found = fleet.fleet(service.jobs(), asked)
    values = {"asked": asked, "fleet": found, "info": service.info(), "sorts": fleet.SORTS, "groups": GROUPS}
    tools = {"current": fleet.current, "age_seconds": fleet.age_seconds, "bar": drawing.bar}
    return site.page(
        request, "fleet.html", last=max((n for n, _ in lately), default=0), lately=_told(lately), **values, **tools
    )


def _told(moments: Sequence[tuple[int, Moment]]) -> list[tuple[Moment, tuple[str, str]]]:
    return [(m, said) for _, m in reversed(moments) if (said := told(m)) is not None]


@router.get("/queue")
def queue_page(request: Request) -> Response:
    """Jobs without a machine, in the order in which they come."""
    site, service = site_of(request), site_of(request).service(request)
    last = newest(service)
    waiting = [b for b in service.jobs_brief(False, folded=True) if b.phase == "queued"]
    waiting.sort(key=lambda b: (-b.level, b.submitted_at))
    values = {"waiting": waiting, "count": sum(jobs_of_row(b.tasks) for b in waiting), "info": service.info()}
    return site.page(request, "queue.html", last=last, row_name=fleet.row_name, licences=service.licences(), **values)


@router.get("/pools")
def pools_page(request: Request) -> Response:
    """Where machines come from."""
    site, service = site_of(request), site_of(request).service(request)
    preview, unknown = _preview(service)
    rows = pools.rows(preview, service.spots(), site.now())
    values = {"rows": rows, "unknown": unknown, "hours": pools.SHOWN // timedelta(hours=1), "spans": drawing.spans}
    return site.page(request, "pools.html", last=newest(service), **values)


def _preview(service: Service) -> tuple[Preview | None, str]:
    """All offers, or why they are not known yet."""
    try:
        return service.preview(pools.SMALL), ""
    except Conflict as e:
        return None, str(e)


@router.get("/costs")
def costs_page(request: Request) -> Response:
    """This month."""
    site, service = site_of(request), site_of(request).service(request)
    who, months = site.who(request), request.app.state.months
    by = request.query_params.get("by", "owner")
    month = months.get(
        who.name if who.own_jobs_only else "", lambda begins: service.report([], begins, None, "day", owner=None)
    )
    by = by if month is None or by in month.groups else "owner"
    values = {"month": month, "by": by, "choices": list(month.groups) if month else list(BY), "bar": drawing.bar}
    return site.page(request, "costs.html", last=newest(service), columns=drawing.columns, **values)


@router.get("/policies")
def policies_page(request: Request) -> Response:
    """What decides."""
    site, service = site_of(request), site_of(request).service(request)
    return site.page(request, "policies.html", last=newest(service), policies=site.policies, info=service.info())


# ---- The store, for operators


def _operators(request: Request) -> Site:
    site = site_of(request)
    if not may(site.who(request).role, Use.OPERATE):
        raise Denied("Only operators may do that: ask one of them.")
    return site


@router.get("/store")
def store_page(request: Request) -> Response:
    """Long commands about the store, with what came of them."""
    site = _operators(request)
    service = site.service(request)
    works: list[tuple[str, str, Progress | None, str]] = []
    for number, what in reversed(list(site.works.items())):
        try:
            works.append((number, what, service.progress(number, 0.0), ""))
        except NotFound:
            site.works.pop(number, None)
        except SpotsurferError as e:
            works.append((number, what, None, str(e)))
    return site.page(request, "store.html", last=newest(service), works=works, choices=WORKS, info=service.info())


@router.post("/store/{what}", name="store_work")
async def store_work(request: Request, what: str) -> Response:
    """Begin one."""
    site = _operators(request)
    site.check(request, await form_of(request))
    if what not in WORKS:
        raise NotFound("The store has no such command here.")
    begun = await run_in_threadpool(site.service(request).store_work, what, None, False, False)
    site.works[begun.id] = what
    while len(site.works) > 10:
        site.works.pop(next(iter(site.works)))
    return moved("/store")


# ---- One job


@router.get("/jobs/{job}")
def job_page(request: Request, job: str) -> Response:
    """Everything about one job."""
    site, service, now = site_of(request), site_of(request).service(request), site_of(request).now()
    query = request.query_params
    last = newest(service)
    status = service.job(JobId(job))
    id = status.job.id
    span = query.get("span", "2d") if query.get("span") in one_job.SPANS else "2d"
    ends = status.job.ended_at or now
    begins = max(status.job.submitted_at, ends - one_job.SPANS[span])
    moments = [m for _, m in service.timeline(id, last=one_job.MOMENTS_MAX)]
    lines = one_job.lines(status, moments, now)
    preview, _ = _preview(service)
    checkpoints, no_checkpoints = _checkpoints(site, service, status)
    log, no_log = _log(service, id)
    return site.page(
        request,
        "job.html",
        last=last,
        status=status,
        here=request.url.path,
        machine=fleet.current(status),
        actions=[a for a in fitting(status) if may(site.who(request).role, Use.CHANGE_JOB)],
        said=ACTIONS[query["said"]].done if query.get("said") in ACTIONS else "",
        asked_for=one_job.asked_for(status),
        age=fleet.age_seconds(status, now),
        life=drawing.life(status, moments, now),
        lines=lines if query.get("moments") == "all" else lines[: one_job.MOMENTS],
        lines_total=len(lines),
        span=span,
        spans=one_job.SPANS,
        charts=one_job.charts(status, service.usage(id, begins), preview, begins, now),
        foretold=one_job.foretold(m.foretold) if (m := fleet.current(status)) is not None else [],
        expected=one_job.expected(status.forecast),
        checkpoints=list(reversed(checkpoints)),
        no_checkpoints=no_checkpoints,
        charges=service.charges(id)[-200:],
        log=log,
        no_log=no_log,
        why=list(reversed(service.why(id, 5))),
        ended=status.job.state in ENDED,
    )


def _checkpoints(site: Site, service: Service, status: JobStatus) -> tuple[Sequence[Checkpoint], str]:
    """Those of a job that one may see, as they were when it had this newest one, but not too long ago."""
    job, now = status.job.id, site.now()
    at, newest, kept = site.checkpoints.get(job, (None, None, ()))
    if at is not None and newest == status.checkpoint and (now - at).total_seconds() < CHECKPOINTS_SECONDS:
        return kept, ""
    try:
        found = service.checkpoints(job)
    except SpotsurferError as e:  # a store that does not answer hides no other part of the page
        return (), str(e)
    if len(site.checkpoints) >= CHECKPOINTS_KEPT:
        site.checkpoints.clear()
    site.checkpoints[job] = now, status.checkpoint, found
    return found, ""


def _log(service: Service, job: JobId) -> tuple[list[tuple[str, str]], str]:
    """The last lines of both streams, with the stream of each part."""
    try:
        parts: Sequence[LogPart] = service.printed(job, LogAsk(tail=LOG_LINES, old_seconds=LOG_OLD_SECONDS)).parts
    except SpotsurferError as e:
        return [], str(e)
    return [(p.stream, p.data.decode("utf-8", "replace")) for p in parts], ""


# ---- Actions


def _ask(action: Action, request: Request, job: str, error: SpotsurferError | None = None) -> Response:
    """The page that asks for confirmation."""
    site, service = site_of(request), site_of(request).service(request)
    if not may(site.who(request).role, Use.CHANGE_JOB):
        raise Denied(DENIED[site.who(request).role])
    status = service.job(JobId(job))
    preview, _ = _preview(service) if action.name == "move" else (None, "")
    kinds = sorted({o.pool.instance_type for o in preview.choices}) if preview else []
    values = {"action": action, "status": status, "kinds": kinds, "error": str(error) if error else ""}
    return site.page(request, "confirm.html", site.status_of(error) if error else 200, **values)


async def _do(action: Action, request: Request, job: str) -> Response:
    site, form = site_of(request), await form_of(request)
    site.check(request, form)
    try:
        await run_in_threadpool(action.do, site.service(request), JobId(job), form)
    except (Denied, NotFound):
        raise
    except SpotsurferError as e:
        return await run_in_threadpool(_ask, action, request, job, e)
    return moved(f"{job_url(job)}?said={action.name}")


def _add(action: Action) -> None:
    async def asked(request: Request, job: str) -> Response:
        return await run_in_threadpool(partial(_ask, action), request, job)

    async def done(request: Request, job: str) -> Response:
        return await _do(action, request, job)

    router.add_api_route(f"/jobs/{{job}}/{action.name}", asked, methods=["GET"], name=f"ask_{action.name}")
    router.add_api_route(f"/jobs/{{job}}/{action.name}", done, methods=["POST"], name=action.name)


for _one in ACTIONS.values():
    _add(_one)
