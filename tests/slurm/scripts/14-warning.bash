# --signal: a warning before the limit.
submit -t 1 --signal=B:USR1@45 -o out.txt --wrap 'trap "echo warned; exit 7" USR1; sleep 300 & wait'; ended "$id"
grep -v ^slurmstepd out.txt
acct "$id"
