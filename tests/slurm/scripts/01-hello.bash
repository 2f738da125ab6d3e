# A script with directives and arguments; what it prints, how it ended.
cat > job.sh <<'END'
#!/bin/bash
#SBATCH --job-name=hello
#SBATCH --time=5 --mem=100M   # a comment
#SBATCH -o "out_%x.txt"

# still directives
#SBATCH --comment="two words"
echo "arguments: $# <$1> <$2>"
echo "in $PWD, submitted from $SLURM_SUBMIT_DIR" | sed "s#$HERE#HERE#g"
#SBATCH --job-name=too-late
echo "to stderr" >&2
exit 3
END
export HERE=$PWD
out=$(sbatch job.sh "a b" '$c'); code=$?
id=${out##* }; note "$id"; echo "$out [$code]"
ended "$id"
show out_hello.txt
acct "$id"
sacct -j "$id" -X -n -P -o JobName,State,ExitCode,Timelimit,ReqMem,AllocCPUS
