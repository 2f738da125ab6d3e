# --kill-on-invalid-dep.
submit -o /dev/null --wrap 'exit 1'; bad=$id
submit -o /dev/null -d "afterok:$bad" --kill-on-invalid-dep=yes --wrap true; b=$id
ended "$bad"
until squeue -h -j "$b" -o %r 2>/dev/null | grep DependencyNeverSatisfied || sacct -n -X -P -o JobName,State -j "$b" | grep 'wrap|CANCELLED'; do sleep "$NAP"; done
scancel "$b"
