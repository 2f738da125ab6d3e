#!/bin/sh
# A GPU machine for some minutes, without a network: `pack` here what it lacks, `run` there all that is still unknown.
#
#   sh bench/gpu/lease.sh pack          build/gpu-runtime.tar.xz from build/runtime/current (make runtime), to travel with the tree
#   OUT=folder sh bench/gpu/lease.sh run    in the tree there, as root, within ten minutes; rows and logs go to $OUT
#
# In order of worth: what slows 40 GB (by hand beside ours), JAX with its threads held, from a notice to the next training step,
# a real driver asked what the stand-in promises.
set -eu
cd "$(dirname "$0")/../.."
tree=$(pwd -P)
packed=build/gpu-runtime.tar.xz

pack() {
    tar -C build/runtime/current/ -cf - . | xz -T0 -6 > "$packed"
    ls -l "$packed"
}

part() { # NAME SECONDS WORDS…: one part, whose failure does not end the others
    name=$1 limit=$2
    shift 2
    echo "== $name"
    began=$(date +%s)
    timeout --kill-after=10 "$limit" "$@" > "$OUT/$name.log" 2>&1 || echo "   ended with $?"
    echo "   $(($(date +%s) - began)) s"
    tail -n 12 "$OUT/$name.log" | cut -c 1-600
}

run() {
    : "${OUT:?where results go}"
    runtime=$tree/build/runtime/current
    [ -x "$runtime/bin/spotsurfer-python" ] || { mkdir -p "$runtime" && tar -C "$runtime" -xf "$packed"; }
    sysctl -q -w kernel.io_uring_disabled=2 || true
    free -m > "$OUT/memory.log"
    cat /sys/kernel/mm/transparent_hugepage/defrag /proc/buddyinfo >> "$OUT/memory.log"
    start="import runpy, sys; sys.path[:0] = ['$tree/agent', '$tree/tests', '$tree']; del sys.argv[0]
runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    python=$(command -v python3)
    set -- "$runtime/bin/spotsurfer-python" -c "$start"
    part forty 330 "$@" bench.gpu pytorch:40 --saves final --steps 180 --between 10 --by-hand plain,again,compacted,touched \
        --python "$python" --runtime "$runtime" --verbose --out "$OUT/forty.json"
    part jax 70 "$@" bench.gpu jax_program:1:hold --steps 200 --between 15 --python "$python" --runtime "$runtime" --verbose \
        --out "$OUT/jax.json"
    part demo 80 "$@" bench.gpu.demo --gb 4 --python "$python" --runtime "$runtime" --out "$OUT/demo.json"
    part driver 60 env SPOTSURFER_TEST_CUDA=real PYTHONPATH="$tree/agent:$tree/tests" "$python" -m pytest -q -p no:cacheprovider \
        tests/agent/test_cuda_driver.py
}

"$@"
