# --wrap, --parsable, --quiet, --wait and its exit code.
t sbatch --wait -o /dev/null --wrap 'exit 0' | sed 's/[0-9]\{6\}/ID/'
t sbatch --wait -o /dev/null --wrap 'exit 3' | sed 's/[0-9]\{6\}/ID/'
t sbatch -Q --wait -o /dev/null --wrap 'exit 4'
submit -o wrapped.txt --wrap 'echo "$0" | sed "s#.*/##"; echo "quoted: \$HOME"; cat "$0"'
ended "$id"
show wrapped.txt
acct "$id"
t sbatch --wait -Q --array=1-3 -o /dev/null --wrap 'exit $SLURM_ARRAY_TASK_ID'
echo '#!/bin/sh
echo from stdin' | sbatch --wait -Q -o stdin.txt; echo "[$?]"
show stdin.txt
