# Forms of sacct's output.
submit -J name-of-a-job -t 5 -c 2 --mem=300M --comment=hey -o /dev/null --wrap 'sleep 1; exit 2'; ended "$id"
t sacct -j "$id"
t sacct -X -j "$id"
t sacct -j "$id" -p
t sacct -j "$id" -P -o JobID,JobIDRaw,JobName%5,State,ExitCode,NCPUS,ReqCPUS,ReqMem,Timelimit,NNodes,NTasks,User,Partition,DerivedExitCode,QOS
t sacct -j "$id" -o JobID%20,State%-12,exitcode
t sacct -n -j "$id.batch" -o JobID,State
t sacct -n -X -P --delimiter=: -j "$id" -o jobid,state
t sacct -n -X -P --name=name-of-a-job -S now-10minutes -o JobName,State | tail -n 1
t sacct -n -X -P -s F -S now-10minutes -j "$id" -o JobName,State
t sacct -n -X -P -s CD -S now-10minutes -j "$id" -o JobName,State
t sacct -n -X -P -S now+1hour -j "$id" -o JobName
t sacct -n -X -P -u "$(id -un)" -j "$id" -o JobName,User,UID,Group
t sacct -b -n -j "$id"
