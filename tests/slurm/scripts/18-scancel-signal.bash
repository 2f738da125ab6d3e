# A signal to a running job.
submit -o out.txt --wrap 'trap "echo got it; exit 6" USR1; echo ready; sleep 100 & wait'
runs "$id"; until grep -q ready out.txt 2>/dev/null; do sleep 0.2; done
t scancel --batch --signal=USR1 "$id"
ended "$id"
show out.txt
sacct -n -X -P -o State,ExitCode -j "$id"
