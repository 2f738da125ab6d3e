# --chdir, --input, the folder of a submission.
mkdir -p work/deep; echo data > work/in.txt
submit -D work -o out.txt --wrap 'pwd; echo "$SLURM_SUBMIT_DIR"; cat in.txt; echo made > made.txt'; ended "$id"
sed "s#$PWD#HERE#" work/out.txt; ls work
submit -i work/in.txt -o in.out --wrap 'cat'; ended "$id"
show in.out
submit -o "$PWD/gone.txt" -D /no/such/folder --wrap 'pwd'; ended "$id"
show gone.txt
cd work/deep && submit -o here.txt --wrap 'pwd' && mv .ids ../../.ids2 && cd ../.. && cat .ids2 >> .ids; ended "$id"
sed "s#$PWD#HERE#" work/deep/here.txt
cat > job.py <<'END'
#!/usr/bin/env python3
#SBATCH -o py.txt
import os, sys
print("python", sys.argv[1:], os.environ["SLURM_JOB_NAME"], os.path.basename(__file__))
END
submit job.py 1 2; ended "$id"
show py.txt
