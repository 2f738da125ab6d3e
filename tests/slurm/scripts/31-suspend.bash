# suspend and resume.
submit -o /dev/null --wrap 'sleep 8'; runs "$id"
t scontrol suspend "$id"
until [ "$(squeue -h -j "$id" -o %T)" = SUSPENDED ]; do sleep 0.2; done
t squeue -h -j "$id" -o '%T %t'
t scontrol resume "$id"
ended "$id"
acct "$id"
