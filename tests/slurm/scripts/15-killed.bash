# Scripts that signals end.
for signal in KILL TERM USR1 SEGV; do
  submit -o /dev/null --wrap "kill -$signal \$\$; sleep 5"; ended "$id"
  sacct -n -X -P -o State,ExitCode -j "$id"
done
submit -o /dev/null --wrap 'exit 130'; ended "$id"
sacct -n -X -P -o State,ExitCode -j "$id"
submit -o /dev/null --wrap 'sh -c "kill -9 \$\$"; echo went on'; ended "$id"
acct "$id"
