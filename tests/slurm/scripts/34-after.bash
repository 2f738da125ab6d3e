# after: a job may begin once others have begun, or were cancelled before.
submit --hold -o /dev/null --wrap 'sleep 100'; first=$id
submit --hold -o /dev/null --wrap true; gone=$id
submit --hold --array=1-2 -o /dev/null --wrap 'sleep 1'; many=$id
submit -o /dev/null -d "after:$first" --wrap true; a=$id
submit -o /dev/null -d "after:$gone" --wrap true; b=$id
submit -o /dev/null -d "after:$many" --wrap true; c=$id
submit -o /dev/null -d "after:${many}_2,afterok:$b" --wrap true; d=$id
submit -o /dev/null -d "$b" --wrap true; e=$id
waits "$a" Dependency
t squeue -h -j "$a" -o '%T %r %E'
t squeue -h -j "$c" -o '%T %r %E'
t squeue -h -j "$e" -o '%T %r %E'
scontrol release "$first"
ended "$a"
t squeue -h -j "$first" -o '%T'
scancel "$gone"
ended "$b" "$e"
scontrol release "${many}_2"
ended "$d"
t squeue -h -j "$c" -o '%T %r'
scontrol release "$many"
ended "$c"
for job in "$a" "$b" "$c" "$d" "$e"; do acct "$job"; done
scancel "$first"
t sbatch -d after:999999 --wrap true
t sbatch -d after --wrap true
t sbatch -d after:x --wrap true
