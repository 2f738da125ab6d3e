# --hold, hold, release.
submit --hold -o /dev/null --wrap true; held=$id
t squeue -h -j "$held" -o '%i %T %t %r %R'
known "$held"; sacct -n -X -P -o State,Start,End -j "$held"
t scontrol release "$held"
ended "$held"
acct "$held"
submit --begin=now+1hour -o /dev/null --wrap true; later=$id
t squeue -h -j "$later" -o '%T %r'
t scontrol uhold "$later"
t squeue -h -j "$later" -o '%T %r'
t scancel "$later"
ended "$later"
acct "$later"
t scontrol hold "$held"
t scontrol release "$held"
