# An array: its lines in the queue, its tasks, its end.
submit --hold --array=1-3,7,10-14:2%2 -J arr -o 'o%a' --wrap 'exit $((SLURM_ARRAY_TASK_ID % 2))'
t squeue -h -j "$id" -o '%i|%j|%t|%r|%F|%K'
t squeue -h -r -j "$id" -o '%i|%t|%F|%K'
known "$id"
sacct -n -X -P -j "$id" -o JobID,State
scontrol show job "$id" | head -n 1
t scontrol release "$id"
ended "$id"
sacct -n -X -P -j "$id" -o JobID,State,ExitCode | sort -t_ -k2n
sacct -n -P -j "${id}_7" -o JobID,JobName,State,ExitCode
sacct -n -X -P -j "$id" -o JobIDRaw | sort -u | wc -l
ls o*
t squeue -h -t all -j "${id}_2" -o '%i %T'
