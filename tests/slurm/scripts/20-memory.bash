# Forms of sizes.
for form in --mem=100 --mem=1G --mem=1024K --mem=2g --mem=100MB --mem=1500M --mem-per-cpu=300M '--mem-per-cpu=300M -c2' --mem=1.5G --mem=x --mem= --mem=1Q; do
  echo "$form"
  submit --hold $form --wrap true
  [ -z "$id" ] || { known "$id"; squeue -h -j "$id" -o '%C %c'; sacct -n -X -P -o ReqMem -j "$id"; scancel "$id"; }
done
t sbatch --mem=1G --mem-per-cpu=100 --wrap true
