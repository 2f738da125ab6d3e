# srun alone, and in a job.
t srun -Q echo hello
t srun -Q sh -c 'echo out; echo err >&2; exit 3' 2>&1 | grep -v '^srun: error: Task exited' | sort
t srun
srun -Q -o file.txt echo into a file; show file.txt
export GREETING=hi
t srun -Q sh -c 'echo $GREETING $SLURM_NTASKS $SLURM_PROCID'
submit -o out.txt --wrap 'srun echo step; srun -o step_%j_%t.txt sh -c "echo to a file"; srun --ntasks=1 sh -c "exit 4"; echo "code $?"'; ended "$id"
grep -v '^srun: ' out.txt
cat "step_${id}_0.txt"
acct "$id" JobName,State,ExitCode | head -n 2
