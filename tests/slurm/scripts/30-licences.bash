# Licences: two of `vcs`.
submit -L vcs:2 -o /dev/null --wrap 'sleep 12'; a=$id
runs "$a"
submit -L vcs -o /dev/null --wrap true; b=$id
waits "$b" Licenses
t squeue -h -j "$b" -o '%T %r %W'
ended "$a" "$b"
acct "$a"; acct "$b"
