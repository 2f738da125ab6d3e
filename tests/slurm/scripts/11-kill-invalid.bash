# --kill-on-invalid-dep.
submit -o /dev/null --wrap 'exit 1'; bad=$id
submit -o /dev/null -d "afterok:$bad" --kill-on-invalid-dep=yes --wrap true; b=$id
ended "$bad" "$b"
acct "$b"
