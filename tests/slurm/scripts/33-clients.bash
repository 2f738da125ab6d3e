# The calls of programs that people use.
# Nextflow
submit -D "$PWD" -J nf-align_1 -o .command.log --no-requeue --signal B:USR2@30 --mem 100M -t 01:00:00 --wrap 'echo nextflow'; n=$id
t squeue --noheader -o '%i %t' -t all -u "$(id -un)" | grep -c "^$n "
ended "$n"
squeue --noheader -o '%i %t' -t all -u "$(id -un)" | grep "^$n "
# Snakemake
submit --job-name 0a1b2c3d-0000-4000-8000-0123456789ab --output sm_%j.log --export=ALL --comment rule_align -A lab -p main -t 10 --mem 100 --ntasks=1 --cpus-per-task=1 -D . --wrap='echo snakemake'; s=$id
ended "$s"
t sacct -X --parsable2 --noheader --format=JobIdRaw,State --starttime now-2hours --endtime now --name 0a1b2c3d-0000-4000-8000-0123456789ab
# submitit
submit --array=0-1%4 --job-name=submitit --output=%A_%a_0_log.out --error=%A_%a_0_log.err --open-mode=append --signal=USR2@90 --time=5 --nodes=1 --ntasks-per-node=1 --wrap 'srun --unbuffered --output %A_%a_%t_log.out --error %A_%a_%t_log.err sh -c "echo result"'
ended "$id"
t sacct -o JobID,State,NodeList --parsable2 -j "$id" | sed -E 's/\|(NODE|localhost|node-1)$/|NODE/' | grep -v '\.0|' | grep -v extern
cat "${id}_1_0_log.out"
# parsl, Toil, dask-jobqueue
t squeue --noheader --format='%i %t' --job "$n"
sacct -n -j "$s" --format JobIDRaw,State,ExitCode -P -S 1970-01-01 | head -n 1
sacct -X --noheader --format=jobid,state --job "$s" | sed 's/ *$//'
