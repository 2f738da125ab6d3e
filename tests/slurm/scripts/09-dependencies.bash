# afterok, afternotok, afterany: fulfilled, waited for, never satisfied.
submit --hold -o /dev/null --wrap true; good=$id
submit --hold -o /dev/null --wrap 'exit 1'; bad=$id
submit -o /dev/null -d "afterok:$good" --wrap true; a=$id
submit -o /dev/null -d "afterok:$bad" --wrap true; b=$id
submit -o /dev/null -d "afternotok:$bad" --wrap true; c=$id
submit -o /dev/null -d "afterany:$good:$bad" --wrap true; d=$id
submit -o /dev/null -d "afterok:$good,afterany:$bad" --wrap true; e=$id
waits "$a" Dependency
t squeue -h -j "$a" -o '%T %r %R %E'
t squeue -h -j "$d" -o '%T %r'
t squeue -h -j "$e" -o '%E'
scontrol release "$good" "$bad"
ended "$good" "$bad" "$a" "$c" "$d" "$e"
waits "$b" DependencyNeverSatisfied
t squeue -h -j "$b" -o '%T %r %R'
known "$b"; sacct -n -X -P -o State,Reason -j "$b"
for job in "$a" "$c" "$d" "$e"; do acct "$job"; done
scancel "$b"; ended "$b"
acct "$b"
