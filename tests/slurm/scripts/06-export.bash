# What --export lets through.
export A='one two' B="quote ' and \" and \$" C=$'line\nline'
for how in '' --export=ALL --export=NONE --export=A --export=A,D=4 --export=ALL,D=4 --export=ALL,A=other; do
  submit -o env.txt $how --wrap 'for v in A B C D; do eval "echo \"$v=<\${$v-not there}>\""; done; echo "${SLURM_EXPORT_ENV-none} ${SLURM_GET_USER_ENV-none}"'
  ended "$id"
  echo "$how"; cat env.txt
done
