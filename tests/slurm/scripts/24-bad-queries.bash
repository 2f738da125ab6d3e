# Questions that are wrong.
t squeue -j 999999
t squeue -j abc
t squeue --foo
t squeue -t foo
t squeue -O foo
t squeue -S x
t squeue extra
t sacct --foo
t sacct -o foo
t sacct -s foo
t sacct -S foo
t sacct -n -j 999999
t scontrol show job 999999
t scontrol show foo
t scontrol foo
t scontrol hold 999999
t scontrol release 999999
t scontrol requeue 999999
t scontrol update jobid=999999 timelimit=5
t scontrol update foo=1
t scontrol hold
t scontrol show
t scontrol update
t scontrol show hostnames 'n[1-3],m5,x[08-10]'
for program in sbatch squeue sacct scancel scontrol sinfo; do t "$program" --version; done
t scontrol version
t sinfo -h -o '%P'
t sinfo -h -o '%R %a %l'
t sinfo -p nope
