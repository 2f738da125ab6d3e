# What is refused, with which words and exit codes.
t sbatch --foo --wrap true
t sbatch -Z --wrap true
t sbatch --ex --wrap true
t sbatch --wrap
t sbatch -c
t sbatch --parsable=1 --wrap true
t sbatch -c 0 --wrap true
t sbatch -c x --wrap true
t sbatch -n 0 --wrap true
t sbatch -N x --wrap true
t sbatch -N 2 --wrap true
t sbatch -c 9999 --wrap true
t sbatch --array=5-1 --wrap true
t sbatch --array=x --wrap true
t sbatch -d foo:1 --wrap true
t sbatch -d afterok --wrap true
t sbatch -d afterok:abc --wrap true
t sbatch --begin=foo --wrap true
t sbatch -p nope --wrap true
t sbatch -L no-such-licence --wrap true
t sbatch --gres=foo --wrap true
t sbatch --signal=FOO --wrap true
t sbatch --open-mode=x --wrap true
t sbatch --kill-on-invalid-dep=maybe --wrap true
t sbatch --mail-type=FOO --wrap true
t sbatch --constraint=foo --wrap true
t sbatch --reservation=foo --wrap true
t sbatch --wrap true job.sh
t sbatch --time=1:2:3:4 --wrap true
for fine in '--nice=5' '--nice' '--mail-type=END,FAIL --mail-user=me@x' '--exclusive' '--qos=normal' '--no-requeue' '--export=NIL' '--hint=nomultithread' '--distribution=block' '--jo=abbreviated' '--get-user-env' '--propagate=ALL' '-k' '-s' '--threads-per-core=1' '--tmp=10' '--gres=none'; do
  echo "$fine"; submit --hold $fine --wrap true; scancel "$id"
done
scancel --me
