# Slurm's variables, and which options make some of them exist.
list='env | grep -E "^SLURM_(ARRAY|CPUS|JOB_(NAME|CPUS|NUM|PARTITION|QOS|ACCOUNT|USER|UID|GID|ID)|LOCALID|MEM|NNODES|NODEID|NODELIST|NPROCS|NTASKS|PROCID|SUBMIT|TASKS|EXPORT|GET)|^SLURMD_|^ENVIRONMENT" | sort'
n=0
for options in '' '-c 2' '-n 2' '-n 1 -c 2' '--mem=512' '--mem-per-cpu=300' '-J other' '--ntasks-per-node=1' '--mem=0' '-A lab'; do
  n=$((n + 1))
  echo "options: $options"
  submit -o "env$n.txt" $options --wrap "$list"; ended "$id"
  sed "s#$PWD#HERE#" "env$n.txt" > cut; [ "$n" = 1 ] && cp cut first
  if [ "$n" = 1 ]; then cat cut; else diff first cut | grep '^[<>]' | grep -v -e JOB_ID -e NODENAME -e NODELIST; fi
done
submit --array=4-8:2 -o 'array%a.txt' --wrap "$list; echo same: \$((SLURM_JOB_ID == SLURM_JOBID))"; ended "$id"
grep -h -E 'ARRAY|same' array6.txt
[ "$(grep -h ^SLURM_JOB_ID array?.txt | sort -u | wc -l)" = 3 ] && echo "each task has an id of its own"
