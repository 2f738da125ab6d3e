"""One call of a program of Slurm's: what it prints, its exit code. The installed programs call `main`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from io import TextIOWrapper

from spotsurfer.model.errors import NoController, SpotsurferError
from spotsurfer.model.job import JobSpec
from spotsurfer.ports.clock import SystemClock
from spotsurfer.slurm.options import Refused
from spotsurfer.slurm.site import DEFAULT_PARTITIONS, Home, Site
from spotsurfer.web.client import Client, Json, connect

PROGRAMS = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "srun")
INTERRUPTED = 130


class Folders(Home):
    """The working folders as package `home` brings them; it is loaded if it is needed."""

    def bring(self, client: Client, spec: JobSpec) -> JobSpec:
        """Send the folder."""
        from spotsurfer.home import bring

        return bring(client, spec)

    def expect(self, client: Client, spec: JobSpec, made: Json, settle: float = 0.0) -> None:
        """Note the jobs; a courier of the user's is started."""
        from spotsurfer.home import expect

        expect(client, [(spec, made)], settle_seconds=settle)

    def deliver(self, client: Client, jobs: Sequence[str]) -> None:
        """Bring home these ended jobs."""
        from spotsurfer.home import deliver

        deliver(client, jobs)

    def awaited(self, client: Client) -> frozenset[str]:
        """Ids of jobs of which something is to come home."""
        from spotsurfer.home.book import Book

        book = Book()
        try:
            return frozenset(one.job for one in book.open(client.place))
        finally:
            book.close()


def main(program: str, partitions: Mapping[str, str] = DEFAULT_PARTITIONS, words: Sequence[str] | None = None) -> int:
    """Run one program; the exit code."""
    site = Site(connect, SystemClock().now().astimezone(), os.environ, folder(), partitions, Folders())
    return run(program, sys.argv[1:] if words is None else words, site)


def folder() -> str:
    """The present folder; "" if somebody removed it."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return ""


def run(program: str, words: Sequence[str], site: Site) -> int:
    """The same in a site of one's own."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")  # one job's comment that is no text must not end a whole list
    try:
        for line in getattr(importlib.import_module(f"spotsurfer.slurm.{program}"), program)(words, site):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except Refused as error:
        sys.stdout.flush()
        if error.said:
            sys.stderr.write(f"{error.said}\n")
        return error.code
    except SpotsurferError as error:
        sys.stdout.flush()
        sys.stderr.write(_trouble(program, error))
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


LOADS = {"squeue": "slurm_load_jobs error: ", "scontrol": "slurm_load_jobs error: ", "sinfo": "slurm_load_partitions: "}


def _trouble(program: str, error: SpotsurferError) -> str:
    if isinstance(error, NoController):
        begin = LOADS.get(program, f"{program}: error: ")
        return f"{begin}Unable to contact slurm controller (connect failure)\n{error}\n"
    return f"{program}: error: {error}\n"
