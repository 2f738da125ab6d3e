# README's first job, by its commands: saved while it runs, moved, identical to an undisturbed run. In a checkout; $1: size of the genome.
# One thread: with two, undisturbed runs of MEGAHIT differ among themselves.
set -eu
size=$1 checkout=$PWD
cd "$(mktemp -d)"
python3 "$checkout/tests/programs/sources/genome.py" 1 "$size" >genome.fa
wgsim -S 1 -e 0.002 -N $((size / 5)) -1 100 -2 100 genome.fa reads.fq rest.fq >variants
assemble="megahit -t 1 -m 1000000000 -r reads.fq -o contigs"
(mkdir alone && cd alone && ln -s ../reads.fq . && time $assemble)

spotsurfer serve >serve.log 2>&1 &
trap 'cat serve.log; kill $!; wait $! || true; spotsurfer local clean --data-dir /var/lib/spotsurfer-controller --all' EXIT
timeout 300 sh -c 'until spotsurfer list; do sleep 2; done'
spotsurfer submit --cpu 1 --mem 2G --in reads.fq --out 'contigs/*.fa' -- $assemble
timeout 900 sh -c 'until spotsurfer list --state running | grep megahit; do sleep 1; done'
spotsurfer checkpoint megahit --wait
spotsurfer move megahit --wait
timeout 1200 spotsurfer watch megahit
spotsurfer show megahit
spotsurfer outputs megahit --to results
cmp alone/contigs/final.contigs.fa "$(find results -name final.contigs.fa)"
