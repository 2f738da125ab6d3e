# Forms of time limits.
for form in 90 1:30 1:30:10 2-3 2-3:4 2-3:4:5 0:10 0 -1 infinite UNLIMITED 1-0 0:61 65 00:00:30 x 1: 1.5 ''; do
  echo "<$form>"
  submit --hold -t "$form" --wrap true
  [ -z "$id" ] || { known "$id"; squeue -h -j "$id" -o '%l'; sacct -n -X -P -o Timelimit,TimelimitRaw -j "$id"; scancel "$id"; }
done
