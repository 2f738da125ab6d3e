# What the scripts share. Everything they print is compared, line by line, with what the real Slurm made them print.
exec 2>&1
export TZ=UTC LC_ALL=C
NAP=${NAP:-0.2}
t() { echo "\$ $*"; "$@"; echo "[$?]"; }
note() { for one; do echo "${one%%;*}" >> .ids; done; }
submit() { id=$(sbatch --parsable "$@"); echo "submit [$?]"; note "$id"; }
# Until accounting knows so many jobs or tasks.
known() { until [ "$(sacct -n -X -P -o Partition -j "$1" | grep -c .)" -ge "${2:-1}" ]; do sleep "$NAP"; done; }
# Until jobs are in no queue, and accounting knows their ends.
ended() {
  local job count
  for job; do
    while squeue -h -t PD,R,S,CG,CF -o %i -j "$job" 2>/dev/null | grep -q .; do sleep "$NAP"; done
    count=$(squeue -h -r -t all -o %i -j "$job" | grep -c .)
    until [ "$(sacct -n -X -P -o Partition,End -j "$job" | grep -v '^|' | grep -vc Unknown)" -ge "$count" ]; do sleep "$NAP"; done
  done
}
runs() { until [ -n "$(squeue -h -t R -o %i -j "$1" 2>/dev/null)" ]; do sleep "$NAP"; done; }
waits() { until [ "$(squeue -h -o %r -j "$1" 2>/dev/null | head -n 1)" = "$2" ]; do sleep "$NAP"; done; }
acct() { sacct -n -P -o "${2:-JobID,JobName,State,ExitCode}" -j "$1"; }
show() { for file; do echo "--- $file"; cat "$file"; done; }
