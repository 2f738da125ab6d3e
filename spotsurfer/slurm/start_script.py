"""What a job of `sbatch` runs: a shell script that lays out Slurm's environment, the batch script and `srun`. Pure.

The batch script travels within the job's specification, as Slurm's travels in its message: nothing of it lies in the user's
folder. On the machine it is a file below the job's own /tmp, so it goes with the checkpoints.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotsurfer.slurm.batch_options import Batch
from spotsurfer.slurm.values import read_tasks

CLUSTER = "spotsurfer"
MEMORY_USUAL = 1 << 30  # of a job that names none
NUMBER = "SPOTSURFER_NUMBER"  # variable in which the controller puts the number of the submission
START = "SPOTSURFER_SLURM_START"  # variable with the text below
COMMAND = ("/bin/sh", "-c", f'eval "${START}"', "slurm_script")
SCRIPT_MAX_BYTES = 100 << 10

# `srun` within a job: one task, here. Options with values of their own are passed over; redirections and the rest hold.
SRUN = r"""#!/bin/sh
out= err= in= dir= mode=truncate label=
need() { [ $# -gt 1 ] || { echo "srun: option '$1' requires an argument" >&2; exit 1; }; }
while [ $# -gt 0 ]; do
  case $1 in
    --) shift; break;;
    --*=*) key=${1%%=*} value=${1#*=}; shift;;
    -[onecipmtNJADdCLkKQwxMGcrSTPqBl]?*) key=${1%"${1#??}"} value=${1#??}; shift;;
    --output|--error|--input|--chdir|--open-mode|--ntasks|--nodes|--cpus-per-task|--mem|--mem-per-cpu|--time|--job-name|--partition|\
    --account|--gres|--gpus|--gpus-per-task|--gpus-per-node|--ntasks-per-node|--nodelist|--exclude|--mpi|--cpu-bind|--mem-bind|\
    --distribution|--export|--jobid|--qos|--constraint|--licenses|--signal|--threads-per-core|--gpu-bind|--relative|\
    -o|-e|-i|-D|-n|-N|-c|-t|-J|-p|-A|-w|-x|-m|-q|-C|-L|-G|-r) need "$@"; key=$1 value=$2; shift 2;;
    -*) key=$1 value=; shift;;
    *) break;;
  esac
  case $key in
    -o|--output) out=$value;; -e|--error) err=$value;; -i|--input) in=$value;; -D|--chdir) dir=$value;;
    --open-mode) mode=$value;; -l|--label) label=1;;
    -n|--ntasks) [ "$value" = 1 ] || {
      echo "srun: error: Unable to create step for job $SLURM_JOB_ID: More processors requested than permitted" >&2; exit 1; };;
    -V|--version) echo "slurm-wlm 22.05.8"; exit 0;;
  esac
done
[ $# -gt 0 ] || { echo "srun: fatal: No command given to execute." >&2; exit 1; }
name() {
  printf %s "$1" | sed -e "s/%j/$SLURM_JOB_ID/g; s/%J/$SLURM_JOB_ID.0/g; s/%A/${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}/g" \
    -e "s/%a/${SLURM_ARRAY_TASK_ID:-4294967294}/g; s/%[tns]/0/g; s/%u/$SLURM_JOB_USER/g; s/%x/$SLURM_JOB_NAME/g" \
    -e "s/%N/$SLURMD_NODENAME/g"
}
[ -z "$dir" ] || cd "$dir" || exit 1
export SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=1
export SLURM_STEP_NODELIST="$SLURM_JOB_NODELIST" SLURM_NTASKS=1 SLURM_NPROCS=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0
[ -z "$in" ] || exec < "$(name "$in")"
case $mode in a*) to='>>';; *) to='>';; esac
if [ -n "$out" ]; then eval "exec $to \"\$(name \"\$out\")\""; [ -n "$err" ] || exec 2>&1; fi
[ -z "$err" ] || eval "exec 2$to \"\$(name \"\$err\")\""
if [ -n "$label" ]; then
  { "$@"; echo $? > "/tmp/srun.$$"; } | sed 's/^/0: /'
  exit "$(cat "/tmp/srun.$$")"
fi
"$@"
code=$?
[ $code -eq 0 ] || echo "srun: error: $SLURMD_NODENAME: task 0: Exited with exit code $code" >&2
exit $code
"""

BODY = r"""
cd "$SPOTSURFER_SLURM_FOLDER" 2>/dev/null || {
  echo "slurmstepd: error: couldn't chdir to \`$SPOTSURFER_SLURM_FOLDER': No such file or directory: going to /tmp instead" >&2
  cd /tmp
}
SLURM_JOB_ID=${SPOTSURFER_NUMBER:-0}
if [ -n "$SPOTSURFER_TASK" ]; then
  export SLURM_ARRAY_JOB_ID=$SPOTSURFER_NUMBER SLURM_ARRAY_TASK_ID=$SPOTSURFER_TASK
  SLURM_JOB_ID=$(( (SPOTSURFER_TASK + 1) * 10000000 + SPOTSURFER_NUMBER ))
fi
SLURMD_NODENAME=$(uname -n)
export SLURM_JOB_ID SLURM_JOBID=$SLURM_JOB_ID
export SLURMD_NODENAME SLURM_JOB_NODELIST=$SLURMD_NODENAME SLURM_NODELIST=$SLURMD_NODENAME
export SLURM_TOPOLOGY_ADDR=$SLURMD_NODENAME SLURM_TOPOLOGY_ADDR_PATTERN=node SLURM_TASK_PID=$$ HOSTNAME=$SLURMD_NODENAME
spool=$(mktemp -d "/tmp/slurm-$SLURM_JOB_ID.XXXXXX") || exit 1
mkdir "$spool/bin" && printf %s "$srun" > "$spool/bin/srun" && printf %s "$script" > "$spool/slurm_script" || exit 1
chmod 755 "$spool/bin/srun" "$spool/slurm_script"
PATH=$spool/bin:${PATH:-/usr/local/bin:/usr/bin:/bin}
unset srun script SPOTSURFER_SLURM_START SPOTSURFER_SLURM SPOTSURFER_SLURM_FOLDER
"""


# ---- Variables

# Of this host alone: folders of the user that no machine has, and what a login or a shell set for itself.
OWN = re.compile(
    r"SLURM_.*|SLURMD_.*|SBATCH_.*|SPOTSURFER_.*|XDG_.*|BASH_FUNC_.*|HOME|TMPDIR|TMP|TEMP|PWD|OLDPWD|SHLVL|_|MAIL|SSH_.*|HOSTNAME"
)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NO_TEXT = re.compile("[\udc80-\udcff]+")  # bytes as Python's "surrogateescape" shows them


def exported(asked: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that `--export` lets a job have; None = ALL."""
    parts = [part for part in (asked or "ALL").split(",") if part]
    everything = "ALL" in parts
    found = {k: v for k, v in environment.items() if everything and VARIABLE.fullmatch(k) and not OWN.fullmatch(k)}
    for part in parts:
        name, equals, value = part.partition("=")
        if equals:
            found[name] = value
        elif name not in ("ALL", "NONE", "NIL") and name in environment:
            found[name] = environment[name]
    return found


def slurm_variables(batch: Batch, name: str, folder: str, submit_folder: str, partition: str) -> dict[str, str]:
    """The variables of Slurm that are known at the submission. Some exist only if their option was given, as in Slurm."""
    account = pwd.getpwuid(os.geteuid())
    cpus = str(batch.cpus)
    found = {
        "ENVIRONMENT": "BATCH",
        "SPOTSURFER_SLURM_FOLDER": folder,
        "SLURM_CLUSTER_NAME": CLUSTER,
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_GTIDS": "0",
        "SLURM_JOB_ACCOUNT": batch.account or account.pw_name,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_JOB_GID": str(account.pw_gid),
        "SLURM_JOB_NAME": name,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_PARTITION": partition,
        "SLURM_JOB_QOS": "normal",
        "SLURM_JOB_UID": str(account.pw_uid),
        "SLURM_JOB_USER": account.pw_name,
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODE_ALIASES": "(null)",
        "SLURM_PRIO_PROCESS": "0",
        "SLURM_PROCID": "0",
        "SLURM_SUBMIT_DIR": submit_folder,
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_TASKS_PER_NODE": str(batch.tasks or 1),
    }
    return found | _if_given(batch)


def _if_given(batch: Batch) -> dict[str, str]:
    found = dict[str, str]()
    if batch.cpus_per_task:
        found["SLURM_CPUS_PER_TASK"] = str(batch.cpus_per_task)
    if batch.tasks:
        found |= {"SLURM_NTASKS": str(batch.tasks), "SLURM_NPROCS": str(batch.tasks)}
    if batch.tasks_per_node:
        found["SLURM_NTASKS_PER_NODE"] = str(batch.tasks_per_node)
    if batch.memory_per_cpu:
        found["SLURM_MEM_PER_CPU"] = str(batch.memory_per_cpu >> 20)
    elif not batch.whole_memory:
        found["SLURM_MEM_PER_NODE"] = str((batch.memory or MEMORY_USUAL) >> 20)
    if batch.export not in (None, "ALL"):
        found |= {"SLURM_EXPORT_ENV": str(batch.export), "SLURM_GET_USER_ENV": "1"}
    if batch.gpus:
        cards = ",".join(map(str, range(batch.gpus)))
        found |= {"SLURM_GPUS_ON_NODE": str(batch.gpus), "SLURM_JOB_GPUS": cards, "CUDA_VISIBLE_DEVICES": cards}
    if batch.array:
        tasks = read_tasks(batch.array.partition("%")[0])
        step = tasks[1] - tasks[0] if len(tasks) > 1 else 1
        found |= {
            "SLURM_ARRAY_TASK_COUNT": str(len(tasks)),
            "SLURM_ARRAY_TASK_MIN": str(tasks[0]),
            "SLURM_ARRAY_TASK_MAX": str(tasks[-1]),
            "SLURM_ARRAY_TASK_STEP": str(step),
        }
    return found


@dataclass(frozen=True, slots=True)
class Start:
    """`variables`: of the user; `own`: Slurm's; `input`: file for stdin, "" = /dev/null.

    `together`: one file takes stdout and stderr, so the job has one pipe for both. Of two, nobody knows what came first.
    """

    script: str
    arguments: Sequence[str]
    variables: Mapping[str, str]
    own: Mapping[str, str]
    input: str = ""
    together: bool = False

    def text(self) -> str:
        """The shell script."""
        exports = [f"export {name}={quoted(value)}" for name, value in {**self.variables, **self.own}.items()]
        words = " ".join(map(quoted, self.arguments))
        given = [f"srun={quoted(SRUN)}", f"script={quoted(self.script)}"]
        run = f'exec "$spool/slurm_script" {words} < {quoted(self.input or "/dev/null")}'
        return "\n".join([*(["exec 2>&1"] if self.together else []), *exports, *given, BODY.strip(), run])


def quoted(text: str) -> str:
    """For a shell. A text like {task} is broken up within the quotes, so that the controller does not fill it in.

    Bytes that are no UTF-8, as of an old script in Latin-1, are written as octal numbers, because a specification is text.
    """
    plain = text.replace("'", "'\"'\"'").replace("{task}", "{ta''sk}")
    return "'" + NO_TEXT.sub(lambda found: f"'\"$(printf '{_octal(found[0])}')\"'", plain) + "'"


def _octal(text: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in text.encode(errors="surrogateescape"))
