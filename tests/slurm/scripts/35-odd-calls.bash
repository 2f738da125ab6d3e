# Calls that are odd, and not wrong; and some that are.
submit --hold --array=1-3%0 --wrap true; a=$id
submit --hold --array=5% --wrap true; b=$id
submit --hold --array= --wrap true; c=$id
submit --hold --array=1-3,2 --wrap true; d=$id
submit --hold -n 2 -c 2 --wrap true; e=$id
t squeue -h -o '%i %C' -S i
t squeue --start
submit -d "$a" --wrap true; f=$id
submit --hold --wrap true; g=$id
waits "$f" Dependency
t squeue -h -o '%i %r'
scancel "$a" "$b" "$c" "$d" "$e" "$f" "$g"
t sbatch --array=1-9999999 --wrap true
t sbatch --array=-1 --wrap true
t sbatch --time=1:00:00:00 --wrap true
mkdir gone && cd gone && rmdir ../gone
t sbatch --wrap true
t squeue -h
t srun true
cd ..
