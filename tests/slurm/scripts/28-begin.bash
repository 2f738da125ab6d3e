# Not before a time.
submit --begin=now+7 -o out.txt --wrap 'echo begun'; soon=$id
waits "$soon" BeginTime
t squeue -h -j "$soon" -o '%T %r'
ended "$soon"
show out.txt
submit --begin=2020-01-01 -o past.txt --wrap 'echo at once'; ended "$id"
show past.txt
for form in 16:00 noon tomorrow 2031-01-01 2031-01-01T10:20:30 now+5minutes now+2days 010231 1/2/31; do
  echo "$form"; submit --hold --begin="$form" --wrap true; scancel "$id"
done
