"""Keys of all objects in shared storage, and the patterns of keys that one attempt's credentials may use.

No other code makes keys. ARCHITECTURE.md explains why the store is the meeting place. The layout:

    spotsurfer.json                              store format and the controller family that owns it; create-only
    pulse                                        the controller writes it again and again, to see that it can
    controller/<n>.json                          who leads: one entry a controller start; create-only
    jobs/<job>/SPEC.json                         what to run; create-only
    jobs/<job>/SECRETS                           what its user keeps from everybody else, sealed; create-only
    jobs/<job>/IMAGE.json                        what its container image's name meant at first; create-only, by the agent
    jobs/<job>/HOME                              the tree that it begins with, after jobs that came before it; create-only
    jobs/<job>/in/<path>                         inputs as the user gave them; create-only
    jobs/<job>/INPUTS.json                       fetched inputs as they were at the first start; create-only
    jobs/<job>/head/<n>.json                     the head log: create-only, entry n+1 has exactly one writer
    jobs/<job>/desired/<attempt>.json            controller -> agent
    jobs/<job>/intents/<checkpoint>              a save is under way: what it builds on may not be collected; by the agent
    jobs/<job>/condemned.json                    chunks about to be collected; by the controller
    jobs/<job>/checkpoints/<id>/PROVEN           somebody was restored from it and lives; create-only, by the controller
    jobs/<job>/checkpoints/<id>/PROTECTED        its user wants it kept; by the controller
    jobs/<job>/log/<attempt>/<stream>-<begin>-<end>  output of the job: these bytes, counted from the job's beginning
    jobs/<job>/out/<attempt>/<path>              outputs; the DONE entry names the attempt whose outputs count
    jobs/<job>/out/<attempt>/.spotsurfer-home/   what comes home of the job's folder: CHANGES, and files by their SHA-256
    jobs/<job>/partial/<number>-<attempt>/LIST   outputs of a job that ran on, as its user asked; written last
    jobs/<job>/partial/<number>-<attempt>/files/<path>
    jobs/<job>/checkpoints/<id>/MANIFEST         written last: its existence makes the checkpoint
    jobs/<job>/chunks/<ab>/<hash>                content-addressed; the hash is keyed by the job's lineage
    jobs/<job>/order.json                        where the job touched its memory first after its last restore; by the agent
    jobs/<job>/packs/<ab>/<hash>                 small chunks, several in one object
    live/<job>.<attempt>                         agent -> controller; one flat folder, one listing shows all changes
    access/<job>.<attempt>                       credentials for a machine, sealed for it alone; by the controller, renewed
    access/<job>.<attempt>.once                  what its user-data leaves out, sealed; by the controller, until a report
    jobs/HOMES/<scope>/<ab>/<sha256>             a file, or a tree, of a folder that jobs work in; by the controller
    machines/<token>/<slot>                      an order for one more agent on a machine that is kept, sealed; create-only
    runtime/<sha256>.tar.gz                      the agent and its interpreter
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass


def store_key() -> str:
    """Key of the object that names the store's format and owner."""
    return "spotsurfer.json"


def pulse_key() -> str:
    """Key of the object that the controller writes again and again to see that the store takes what is written."""
    return "pulse"


def controller_prefix() -> str:
    """Folder of the controllers' generation entries."""
    return "controller/"


def controller_key(generation: int) -> str:
    """Key of one controller generation."""
    return f"controller/{generation:08d}.json"


def jobs_prefix() -> str:
    """Folder of all jobs."""
    return "jobs/"


def job_prefix(job: str) -> str:
    """Folder that holds everything of a job but its reports."""
    return f"jobs/{job}/"


def spec_key(job: str) -> str:
    """Key of a job's immutable specification."""
    return f"jobs/{job}/SPEC.json"


def secrets_key(job: str) -> str:
    """Key of the sealed secrets of a job."""
    return f"jobs/{job}/SECRETS"


def image_key(job: str) -> str:
    """Key of what the job's container image was resolved to."""
    return f"jobs/{job}/IMAGE.json"


def inputs_key(job: str) -> str:
    """Key of what was seen of the fetched inputs at the first start; create-only."""
    return f"jobs/{job}/INPUTS.json"


def input_key(job: str, path: str) -> str:
    """Key of an input; `path` is relative to the job's folder."""
    return f"jobs/{job}/in/{path}"


def head_prefix(job: str) -> str:
    """Folder of a job's head log."""
    return f"jobs/{job}/head/"


def head_key(job: str, number: int) -> str:
    """Key of one head entry; names sort like numbers."""
    return f"jobs/{job}/head/{number:08d}.json"


def desired_prefix(job: str) -> str:
    """Folder of what the controller wants of a job's attempts."""
    return f"jobs/{job}/desired/"


def desired_key(job: str, attempt: int) -> str:
    """Key of what the controller wants of an attempt."""
    return f"jobs/{job}/desired/{attempt:06d}.json"


def log_prefix(job: str) -> str:
    """Folder of a job's output pieces, all attempts."""
    return f"jobs/{job}/log/"


def attempt_log_prefix(job: str, attempt: int) -> str:
    """Folder of the output pieces of one attempt."""
    return f"jobs/{job}/log/{attempt:06d}/"


def log_key(job: str, attempt: int, stream: str, begin: int, end: int) -> str:
    """Key of the piece of output that holds bytes [begin, end) of a stream ("out", "err" or "times"), from the job's beginning.

    Agents up to 0.2 left the end out.
    """
    return f"{attempt_log_prefix(job, attempt)}{stream}-{begin:016d}-{end:016d}"


def output_prefix(job: str, attempt: int) -> str:
    """Folder of an attempt's outputs."""
    return f"jobs/{job}/out/{attempt:06d}/"


HOME_RESULTS = ".spotsurfer-home"  # below an attempt's outputs; no output has this name


def home_changes_key(job: str, attempt: int) -> str:
    """Key of the list of what comes home of the job's folder; written last."""
    return f"{output_prefix(job, attempt)}{HOME_RESULTS}/CHANGES"


def home_result_key(job: str, attempt: int, sha256: str) -> str:
    """Key of a file of that list."""
    return f"{output_prefix(job, attempt)}{HOME_RESULTS}/{sha256}"


def home_tree_key(job: str) -> str:
    """Key of the name of the tree that a job begins with, if that is another one than it was submitted with."""
    return f"jobs/{job}/HOME"


def home_scope(owner: str, home: str) -> str:
    """Name of what one owner's jobs in one folder share."""
    return hashlib.sha256(f"{owner}\0{home}".encode()).hexdigest()[:32]


def homes_prefix() -> str:
    """Folder of all scopes."""
    return f"{jobs_prefix()}HOMES/"


def home_prefix(scope: str) -> str:
    """Folder of what jobs of one scope were sent. No job has such an id; clouds' roles open what lies below jobs/."""
    return f"{homes_prefix()}{scope}/"


def home_file_key(scope: str, sha256: str) -> str:
    """Key of a file of a folder, or of a tree of it."""
    return f"{home_prefix(scope)}{sha256[:2]}/{sha256}"


def partials_prefix(job: str) -> str:
    """Folder of all outputs that were uploaded before the end."""
    return f"jobs/{job}/partial/"


def partial_prefix(job: str, number: int, attempt: int) -> str:
    """Folder of the files that one attempt uploaded for one request."""
    return f"jobs/{job}/partial/{number:06d}-{attempt:06d}/files/"


def partial_key(job: str, number: int, attempt: int) -> str:
    """Key of the list of these files."""
    return f"jobs/{job}/partial/{number:06d}-{attempt:06d}/LIST"


def checkpoint_id(epoch: int, sequence: int) -> str:
    """Name of a checkpoint; later ones sort later."""
    return f"{epoch:06d}-{sequence:06d}"


def epoch_of(checkpoint: str) -> int:
    """The attempt that made a checkpoint of this name; 0 = none of this job's, or no such name."""
    epoch = checkpoint.partition("-")[0]
    return int(epoch) if epoch.isdecimal() else 0


def manifest_key(job: str, checkpoint: str) -> str:
    """Key of the object whose existence makes the checkpoint."""
    return f"jobs/{job}/checkpoints/{checkpoint}/MANIFEST"


def checkpoints_prefix(job: str) -> str:
    """Folder of a job's checkpoints: one folder each."""
    return f"jobs/{job}/checkpoints/"


def proven_key(job: str, checkpoint: str) -> str:
    """Key of the mark that a job went on from this checkpoint."""
    return f"jobs/{job}/checkpoints/{checkpoint}/PROVEN"


def protected_key(job: str, checkpoint: str) -> str:
    """Key of the user's mark that this checkpoint stays."""
    return f"jobs/{job}/checkpoints/{checkpoint}/PROTECTED"


def intents_prefix(job: str) -> str:
    """Folder of a job's saves under way."""
    return f"jobs/{job}/intents/"


def attempt_intents_prefix(job: str, attempt: int) -> str:
    """Prefix of the keys of one attempt's saves under way."""
    return f"jobs/{job}/intents/{attempt:06d}-"


def intent_key(job: str, checkpoint: str) -> str:
    """Key of the object that says that a save has begun and not ended."""
    return f"jobs/{job}/intents/{checkpoint}"


def condemned_key(job: str) -> str:
    """Key of the collector's list: an attempt that uses one of its chunks must not commit."""
    return f"jobs/{job}/condemned.json"


def chunks_prefix(job: str) -> str:
    """Folder of a job's chunks that are objects of their own."""
    return f"jobs/{job}/chunks/"


def chunk_key(job: str, digest: str) -> str:
    """Key of a chunk by the hex digest of its plain bytes."""
    return f"jobs/{job}/chunks/{digest[:2]}/{digest}"


def packs_prefix(job: str) -> str:
    """Folder of a job's packs."""
    return f"jobs/{job}/packs/"


def pack_key(job: str, name: str) -> str:
    """Key of an object that holds several small chunks; `name` is the hex digest of its bytes."""
    return f"jobs/{job}/packs/{name[:2]}/{name}"


def order_key(job: str) -> str:
    """Key of the hint in which order a job's memory is wanted after a restore."""
    return f"jobs/{job}/order.json"


def live_prefix() -> str:
    """Folder of all agents' reports."""
    return "live/"


def live_key(job: str, attempt: int) -> str:
    """Key of an agent's report."""
    return f"live/{job}.{attempt:06d}"


def handouts_prefix() -> str:
    """Folder of all credentials that were handed out."""
    return "access/"


def handout_key(job: str, attempt: int) -> str:
    """Key of the credentials of one attempt."""
    return f"access/{job}.{attempt:06d}"


def voucher_key(job: str, attempt: int) -> str:
    """Key of what the user-data of one attempt leaves out."""
    return f"access/{job}.{attempt:06d}.once"


def orders_prefix(machine: str) -> str:
    """Folder of the orders for one machine, by its launch token."""
    return f"machines/{machine}/"


def order_slot_key(machine: str, slot: int) -> str:
    """Key of the order for one slot of a machine."""
    return f"machines/{machine}/{slot:06d}"


def runtime_prefix() -> str:
    """Folder of the agent's runtimes."""
    return "runtime/"


def runtime_key(sha256: str) -> str:
    """Key of an agent runtime tarball."""
    return f"runtime/{sha256}.tar.gz"


# ---- Rights: what the credentials of one attempt's machine may do, as patterns of keys. Pure.
#
# One place serves all clouds: the session policy of AWS and the gateway of a box grant the same rights. A machine can't change
# what was written before, except for its own report and output and the objects that are rewritten each time. So a thief of the
# credentials can read this one job and stop it, but can't rewrite its past.


@dataclass(frozen=True, slots=True)
class KeyRights:
    """In patterns `*` stands for any characters, slashes too. Keys are relative to the store.

    The specification, secrets and inputs that were sent along are there before any machine is: nobody can create them again.
    """

    own: tuple[str, ...]  # may be read, and be created where there is nothing yet …
    controllers: tuple[str, ...]  # … but for these of them
    overwritten: tuple[str, ...]  # of `own`: may be written whether there is something or not
    removed: tuple[str, ...]  # of `own`
    read: tuple[str, ...] = ()  # besides `own`, and nothing else

    def may_read(self, key: str) -> bool:
        """Also what the controller writes: orders, specification, sealed secrets."""
        return _fits((*self.own, *self.read), key)

    def may_create(self, key: str) -> bool:
        """Whether an object may be created if it is absent."""
        return _fits(self.own, key) and not _fits(self.controllers, key)

    def may_overwrite(self, key: str) -> bool:
        """Whether an object may be written even if it exists."""
        return self.may_create(key) and _fits(self.overwritten, key)

    def may_remove(self, key: str) -> bool:
        """Whether an object may be removed."""
        return _fits(self.own, key) and _fits(self.removed, key)


def array_of(job: str) -> str:
    """The array that a job of this id would be a task of; "" = none. No other job may have an id between the two."""
    match = re.fullmatch(r"(.+)-\d{1,7}", job)
    return match[1] if match is not None else ""


def rights_of_attempt(job: str, attempt: int, scope: str = "") -> KeyRights:
    """The rights of the machine that runs, or will run, this attempt; `scope`: of the folder that the job works in.

    A task may read the inputs of its array.
    """
    home, report = job_prefix(job), live_key(job, attempt)
    array = (input_key(array_of(job), "*"),) if array_of(job) else ()
    return KeyRights(
        own=(f"{home}*", report),
        controllers=(
            f"{desired_prefix(job)}*",
            condemned_key(job),
            proven_key(job, "*"),
            protected_key(job, "*"),
        ),
        overwritten=(
            report,
            f"{attempt_log_prefix(job, attempt)}*",
            f"{output_prefix(job, attempt)}*",
            f"{partials_prefix(job)}*",
            order_key(job),
        ),
        removed=(
            f"{attempt_intents_prefix(job, attempt)}*",
            f"{attempt_log_prefix(job, attempt)}*",  # pieces that were merged
            f"{partials_prefix(job)}*",
        ),
        read=(*array, *((f"{home_prefix(scope)}*",) if scope else ())),
    )


def _fits(patterns: tuple[str, ...], key: str) -> bool:
    return any(_matches(p, key) for p in patterns)


def _matches(pattern: str, key: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), key, re.DOTALL) is not None
