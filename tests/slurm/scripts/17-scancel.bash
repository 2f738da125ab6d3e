# scancel by id, name, user and state; what became of the jobs.
submit -o out.txt --wrap 'echo begun; sleep 100'; a=$id
submit --hold -J byname -o /dev/null --wrap true; b=$id
submit --hold -J other -o /dev/null --wrap true; c=$id
submit --hold -J other -o /dev/null --wrap true; d=$id
runs "$a"; sleep 1
t scancel -n byname
ended "$b"
t scancel -t PENDING -n other
ended "$c" "$d"
t squeue -h -u "$(id -un)" -o '%T'
t scancel "$a"
ended "$a"
for job in "$a" "$b" "$c"; do sacct -n -P -X -o State,ExitCode,Elapsed -j "$job" | sed 's/00:00:0[0-9]/SECONDS/'; done
sacct -n -P -o JobID,State -j "$b"
t squeue -h -t all -j "$a" -o '%T %t'
t scancel "$a"
t scancel -v "$a"
t scancel 999999
t scancel
t scancel abc
t scancel --state=foo 1
t scancel --signal=FOO 1
t scancel --foo
submit --hold -o /dev/null --wrap true
t scancel --me
ended "$id"
acct "$id"
