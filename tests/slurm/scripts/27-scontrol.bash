# scontrol show job, line by line, of a waiting and of an ended job.
sbatch --parsable > .out <<'END'
#!/bin/sh
#SBATCH --hold -J shown -t 90 --mem=300M --comment=hey -o out_%j.txt -e err_%j.txt
true
END
id=$(cat .out); note "$id"
scontrol show job "$id" | sed "s#$PWD#HERE#g"
scontrol -o show job "$id" | tr ' ' '\n' | grep -E '^(JobId|JobState|Reason|TimeLimit|ExitCode)='
scontrol release "$id"; ended "$id"
scontrol show job "$id" | sed "s#$PWD#HERE#g"
submit --hold --array=1-3%2 --wrap true
scontrol show job "$id" | head -n 1
scontrol show job "${id}_2" | grep -o 'JobState=[A-Z]*'
scancel "$id"
