# scancel of some tasks.
submit --hold --array=1-6 --wrap true
t scancel "${id}_[2-3,5]"
t squeue -h -j "$id" -o '%i %r'
t scancel "${id}_1"
t squeue -h -r -j "$id" -o '%i %r'
t scancel "$id"
while [ -n "$(squeue -h -j "$id" 2>/dev/null)" ]; do sleep "$NAP"; done; known "$id"
sacct -n -X -P -j "$id" -o State | sort | uniq -c | sed 's/^ *//'
t scancel "${id}_[9-x]"
