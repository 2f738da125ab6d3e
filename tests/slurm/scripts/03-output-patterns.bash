# Names of output files.
submit -J nm -o 'a_%j_%x_%u_%n_%t_%s_%%_%q.out' --wrap 'true'; ended "$id"
submit -J nm -o 'b_%8j_%A_%a.out' --wrap 'true'; ended "$id"
submit --array=3,12 -o 'c_%A_%a_%4a.out' --wrap 'true'; ended "$id"
submit -o 'd\%j.out' --wrap 'true'; ended "$id"
submit --array=1-2 --wrap 'echo $SLURM_ARRAY_TASK_ID'; ended "$id"
submit --wrap 'echo usual'; ended "$id"
submit -o /dev/null -e 'e_%j.err' --wrap 'echo out; echo err >&2'; ended "$id"
mkdir sub
submit -o 'sub/%x.out' -J below --wrap 'true'; ended "$id"
ls -R
cat slurm-*.out e_*.err
