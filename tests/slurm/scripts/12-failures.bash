# Exit codes.
for code in 0 1 2 42 127 255; do
  submit -o /dev/null --wrap "exit $code"; ended "$id"
  acct "$id"
  sacct -n -X -P -o State,ExitCode,DerivedExitCode -j "$id"
  t squeue -h -t all -j "$id" -o '%T %r %R'
done
printf '#!/no/such/shell\ntrue\n' > bad.sh
submit -o /dev/null bad.sh; ended "$id"
sacct -n -X -P -o State -j "$id"
