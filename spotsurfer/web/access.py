"""The service as one person may use it: each method goes through the table of rights, so that no route can go around it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

from spotsurfer.model.access import DENIED, USES, Principal, Use, may
from spotsurfer.model.errors import Denied, NotFound
from spotsurfer.model.job import JobId
from spotsurfer.ports.service import Service

REMEMBERED = 100_000  # ids and numbers: far more than are ever under way at a time


class Makers:
    """Who began something that is not in the database: ids of jobs to come, numbers of long commands. Lost at a restart.

    Then such an id is anybody's who knows it; it has 24 random bits, and nothing can be read by it.
    """

    def __init__(self) -> None:
        self._names: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, thing: str, name: str) -> None:
        """Remember who began it."""
        with self._lock:
            self._names[thing] = name
            while len(self._names) > REMEMBERED:
                self._names.popitem(last=False)

    def is_anothers(self, thing: str, name: str) -> bool:
        """Whether somebody else did."""
        return self._names.get(thing, name) != name


def as_principal(service: Service, who: Principal, makers: Makers) -> Service:
    """The service for `who`. Jobs of others are NotFound for users; what a role may not do is Denied."""
    return cast(Service, _Guarded(service, who, makers))


class _Guarded:
    def __init__(self, service: Service, who: Principal, makers: Makers) -> None:
        self._service, self._who, self._makers = service, who, makers

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method not in USES:
            raise AttributeError(method)
        use, call = USES[method], getattr(self._service, method)

        def guarded(*given: Any, **named: Any) -> Any:
            if not may(self._who.role, use):
                raise Denied(DENIED[self._who.role])
            return self._use(use, call, method, given, named)

        return guarded

    def _use(self, use: Use, call: Callable[..., Any], method: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        who = self._who
        named |= self._named(use, method)
        if use in (Use.NEW_ID, Use.BEGIN_WORK):
            answer = call(*self._own(given), **named) if use is Use.BEGIN_WORK else call(*given, **named)
            self._makers.note(answer if use is Use.NEW_ID else answer.id, who.name)
            return answer
        if use is Use.AS_OWNER or not who.own_jobs_only:
            return call(*given, **named)
        if use in (Use.TO_COME, Use.JOBS_TO_COME, Use.WORK):
            for thing in (new.id for new in given[0] if new.id) if use is Use.JOBS_TO_COME else given[:1]:
                if self._makers.is_anothers(str(thing), who.name) or (use is not Use.WORK and self._exists_for_others(thing)):
                    raise NotFound(f"There is no {'command' if use is Use.WORK else 'job to come'} {thing!r} of yours.")
            return call(*given, **named)
        if use is Use.LIST or (use is Use.READ_JOB_OR_LIST and given[0] is None):
            return call(*given, **{**named, "owner": who.name})  # whatever owner they asked for
        if use is Use.READ_JOBS_OR_LIST:
            theirs = [self._service.resolve(job, who.name, False) for job in given[0]]
            return call(theirs, *given[1:], **{**named, "owner": who.name})
        if use is Use.LOOK:
            return call(*given, **named)
        return call(*self._own(given, whole=use is Use.CHANGE_JOB), **named)

    def _named(self, use: Use, method: str) -> dict[str, Any]:
        """Who asks, for the methods that must know."""
        if method in ("submit", "submit_many"):
            return {"owner": self._who.name, "within": self._who.name if self._who.own_jobs_only else None}
        return {"owner": self._who.name} if use is Use.AS_OWNER else {}

    def _own(self, given: tuple[Any, ...], *, whole: bool = True) -> tuple[Any, ...]:
        """The arguments with the id of a job of theirs instead of its name; of two jobs with a name they mean their own."""
        if not self._who.own_jobs_only:
            return given
        return self._service.resolve(JobId(str(given[0])), self._who.name, whole), *given[1:]

    def _exists_for_others(self, job: JobId) -> bool:
        try:
            self._service.resolve(job, None)
        except NotFound:
            return False
        try:
            self._service.resolve(job, self._who.name)
        except NotFound:
            return True
        return False
