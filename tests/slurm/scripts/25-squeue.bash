# Forms of squeue's output.
submit --hold -J alpha -t 90 -c 2 --mem=300M --comment=hey --wrap true; a=$id
submit --hold -J beta-with-a-long-name -A lab --wrap true; b=$id
t squeue
t squeue -h -j "$a,$b" -S i
t squeue -h -l -j "$a" | tail -n 2
t squeue -j "$a" -o '%8i|%.8i|%i|%j|%t|%T|%r|%R|%l|%M|%L|%S|%e|%P|%y|%E|%F|%K|%u|%U|%g|%C|%D|%N'
t squeue -j "$a" -O 'JobID,Name,State,StateCompact,TimeLimit,TimeUsed,UserName,NumCPUs,Partition,Reason'
t squeue -h -j "$b" -O 'Name:12,Name:.12,Name:30,account'
t squeue -h -n alpha -o %j
t squeue -h -n alpha,nothing -o %j
t squeue -h -u "$(id -un)" -t PD -o %j -S j
t squeue -h -t R,CG -o %j
t squeue -h -p main -o %j -S -j
t squeue -h -A lab -o %j
t squeue --me -h -o '%i %t' -S i
t squeue --noheader --format='%i %t' --job "$a"
t squeue -h -j "$a" -o 'before %i after'
scancel "$a" "$b"
