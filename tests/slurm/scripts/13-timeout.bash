# A time limit of a minute.
submit -t 1 -o out.txt --wrap 'echo begun; sleep 300; echo not reached'; ended "$id"
acct "$id"
t squeue -h -t all -j "$id" -o '%T %r %l'
head -n 1 out.txt
submit -t 1 -o trap.txt --wrap 'trap "echo asked to end; exit 5" TERM; while :; do sleep 300 & wait; done'; ended "$id"
acct "$id"
grep -v CANCELLED trap.txt
