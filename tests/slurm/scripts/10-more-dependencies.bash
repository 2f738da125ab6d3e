# aftercorr, singleton, a whole array.
submit --array=1-2 -o /dev/null --wrap 'sleep $SLURM_ARRAY_TASK_ID; exit $((SLURM_ARRAY_TASK_ID - 1))'; first=$id
submit --array=1-2 -o /dev/null -d "aftercorr:$first" --wrap true; corr=$id
submit -o /dev/null -d "afterany:$first" --wrap true; whole=$id
submit -o /dev/null -d "afterok:${first}_1" --wrap true; one=$id
submit --hold -J single -o /dev/null --wrap true; s1=$id
submit -J single -o /dev/null -d singleton --wrap true; s2=$id
waits "$s2" Dependency
t squeue -h -j "$s2" -o '%T %r %E'
scontrol release "$s1"
ended "$first" "$whole" "$one" "$s1" "$s2" "${corr}_1"
acct "$one"; acct "$whole"; acct "$s2"; acct "${corr}_1"
waits "${corr}_2" DependencyNeverSatisfied
t squeue -h -j "$corr" -o '%i %r'
scancel "$corr"
