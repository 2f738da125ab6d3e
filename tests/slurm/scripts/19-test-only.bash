# --test-only submits nothing.
before=$(squeue -h -t all | wc -l)
sbatch --test-only --wrap true | sed -E 's/Job [0-9]+/Job N/; s/on nodes .* in/on nodes NODES in/'
sbatch --test-only --wrap true > /dev/null 2>&1; echo "[$?]"
t sbatch --test-only -c 9999 --wrap true
[ "$before" = "$(squeue -h -t all | wc -l)" ] && echo "nothing was submitted"
