#!/bin/sh
# A GPU machine for some minutes, without a network: `pack` here what it lacks, `run` there all that is still unknown.
#
#   sh bench/gpu/lease.sh pack          build/gpu-runtime.tar.xz, 55 MB that travel with the tree: build/runtime/current, and what a
#                                       controller needs besides (after `make setup`, with a network)
#   OUT=folder sh bench/gpu/lease.sh run    in the tree there, as root, within ten minutes; rows and logs go to $OUT
#   OUT=folder sh bench/gpu/lease.sh run forty bring     only these parts
#
# Parts, in this order: `forty` 40 GB, saved live, then for the last time, restored, with the same by hand; `again` what a second save
# sends, programs that need no held threads; `jax` JAX, whose threads are held; `bring` a job without a GPU brought back on 2 to 16
# processors. Not run unless they are named: `written` programs as people write them; `train` PyTorch and a transformer with 1 to
# 10 GB; `cpu-16` (-1, -32, -64) the engine without a GPU beside CRIU, as `make bench-checkpoint` does it, with a job of so many GB;
# `notice` from a notice to the next training step; `demo` the same and more under a controller; `guide` the commands of
# docs/train-on-spot-gpus.md, word for word; `driver` a real driver asked what the stand-in promises; `faults` what can go wrong, on real hardware. When LIMIT seconds are over (590) a part is cut off, and what
# is left is not begun; rows that were done until then are there.
set -eu
cd "$(dirname "$0")/../.."
tree=$(pwd -P)
packed=build/gpu-runtime.tar.xz

pack() { # without the programs for container images, which nothing here needs
    rm -rf build/controller
    wheels='--python-version 3.14 --implementation cp --only-binary=:all: --no-compile --quiet --disable-pip-version-check'
    for libc in 2014 _2_17 _2_28 _2_34; do wheels="$wheels --platform manylinux${libc}_x86_64"; done
    sed -nE 's/^([A-Za-z0-9._-]+)(\[[^]]*\])?(==[^ ]+).*/\1\3/p' requirements.lock > build/controller.txt
    # Of pyproject's dependencies, those that the agent's runtime lacks.
    # shellcheck disable=SC2086 # flags are words
    .venv/bin/python -m pip install --target build/controller $wheels --constraint build/controller.txt \
        alembic apscheduler fastapi pydantic-settings rich sqlalchemy structlog typer uvicorn
    .venv/bin/python -m pip install --target build/controller --no-deps --no-compile --quiet --disable-pip-version-check .
    for part in build/runtime/debs/libpython3.14-stdlib_*.deb build/runtime/debs/libsqlite3-0_*.deb; do # an agent has no use for them
        dpkg-deb -x "$part" build/controller
    done
    for part in spotsurfer spotsurfer_agent spotsurfer_lab spotsurfer_policies spotsurfer_providers spotsurfer_wire bin; do
        rm -r "build/controller/$part" # the tree has them; its entry points stay
    done
    tar -C build/runtime/current/ --exclude ensurepip --exclude idlelib --exclude pydoc_data --exclude skopeo --exclude umoci -cf - . \
        -C /usr/sbin mkfs.btrfs -C "$tree/build" controller -C runtime latest.json | xz -T0 -4 > "$packed"
    ls -l "$packed"
}

for_controller() { # the runtime as a controller finds it where it was built: a tarball, by its hash
    tar -C "$runtime" --exclude ./controller -cf - . | gzip -1 > build/lease/agent.tar.gz
    sha256=$(sha256sum build/lease/agent.tar.gz | cut -c 1-64)
    mv build/lease/agent.tar.gz "build/lease/$sha256.tar.gz"
    sed "s/\"sha256\": \"[0-9a-f]*\"/\"sha256\": \"$sha256\"/" "$runtime/latest.json" > build/lease/latest.json
}

of_guide() { # the guide's commands, and the command `spotsurfer` that they use
    printf '#!/bin/sh\nexec %s -m spotsurfer "$@"\n' "$1" > "$runtime/bin/spotsurfer"
    chmod +x "$runtime/bin/spotsurfer"
    # shellcheck disable=SC2016 # backquotes of Markdown, and shell for later
    { echo 'trap "kill \$(jobs -p) 2>/dev/null || true; wait" EXIT'; sed -n '/^```sh$/,/^```$/{/^```/!p}' docs/train-on-spot-gpus.md; } > build/lease/guide.sh
}

part() { # NAME SECONDS WORDS…: one part, whose failure does not end the others
    name=$1 limit=$2
    shift 2
    case " $wanted " in *" $name "*) ;; *) return 0 ;; esac
    began=$(date +%s)
    left=$((until - began))
    echo "== $name"
    [ "$left" -ge 20 ] || { echo "   not begun: $left s are left"; return 0; }
    [ "$limit" -le "$left" ] || limit=$left
    timeout --kill-after=10 "$limit" "$@" > "$OUT/$name.log" 2>&1 || echo "   ended with $?"
    echo "   $(($(date +%s) - began)) s"
    tail -n 12 "$OUT/$name.log" | cut -c 1-600
}

run() { # STANDIN=1: a try of this script itself, on any host
    : "${OUT:?where results go}"
    mkdir -p "$OUT"
    wanted=${*:-forty again jax bring} until=$(($(date +%s) + ${LIMIT:-590}))
    runtime=$tree/build/lease/current
    [ -x "$runtime/bin/spotsurfer-python" ] || { mkdir -p "$runtime" && tar -C "$runtime" -xf "$packed"; }
    size=40 small=4 bring=20 faults=2 train='pytorch:1 transformer:2 pytorch:10' extra="" standin=""
    written='dataloader:1 persistent:1 hf_trainer:1 lightning:1 compiled:1 batching:1 streams:1 malloc_async:1 expandable:1
 triton:1 gloo:1 one_nccl:1'
    if [ -n "${STANDIN:-}" ]; then
        size=0.02 small=0.02 bring=0.2 faults=0.02 train=pytorch:0.02 written=pytorch:0.02 extra="--standin --threads 2" standin=--standin
    else
        # Without io_uring, and with wide pipes: an agent that is root of a whole machine may make them wide itself.
        sysctl -q -w kernel.io_uring_disabled=2 fs.pipe-max-size=16777216 || true
    fi
    free -m > "$OUT/memory.log"
    cat /sys/kernel/mm/transparent_hugepage/defrag /proc/buddyinfo >> "$OUT/memory.log"
    # What a program starts of ours has to be of this tree, too, and pytest, which some helpers of the tests import, is not there.
    own=$runtime/bin/lease-python
    start="import runpy, sys, types; sys.path[:0] = ['$tree/' + x for x in ('wire', 'agent', 'providers', 'policies', 'tests', '')]
sys.path += ['$runtime/controller' + x for x in ('', '/usr/lib/python3.14', '/usr/lib/python3.14/lib-dynload')]; del sys.argv[0]
sys.executable = '$own'; sys.modules['pytest'] = types.ModuleType('pytest')
runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    # shellcheck disable=SC2016 # the words of the program that is written
    printf '#!/bin/sh\nuntil [ "$1" = -m ]; do shift; done\nshift\nexec %s/bin/spotsurfer-python -c "%s" "$@"\n' "$runtime" "$start" > "$own"
    chmod +x "$own"
    # A bare machine has neither iproute2 nor btrfs-progs: what the machine has comes first, then what travels along.
    lib=$runtime/prefix/usr/lib/x86_64-linux-gnu
    cp -f "$runtime"/controller/usr/lib/x86_64-linux-gnu/libsqlite3.so.* "$lib"
    making=$runtime/bin/mkfs.btrfs
    printf '#!/bin/sh\nexec %s/ld-linux-x86-64.so.2 --library-path %s %s/mkfs.btrfs "$@"\n' "$lib" "$lib" "$runtime" > "$making"
    chmod +x "$making"
    export PATH="$PATH:$runtime/bin" SPOTSURFER_TEST_RUNTIME="$runtime"
    python=$(command -v python3)
    set -- "$own" -m
    rows="--python $python --runtime $runtime --verbose"
    # shellcheck disable=SC2086 # flags are words
    part forty 330 "$@" bench.gpu "pytorch:$size" --saves live,final --steps 800 --between 10 --by-hand plain $extra $rows \
        --out "$OUT/forty.json"
    # shellcheck disable=SC2086
    part again 170 "$@" bench.gpu cupy_program:1 cuda:1 server:1 --steps 150 --first 10 --between 20 $extra $rows \
        --out "$OUT/again.json"
    # shellcheck disable=SC2086
    part jax 80 "$@" bench.gpu jax_program:1 --steps 300 --first 10 --between 15 $extra $rows --out "$OUT/jax.json"
    # shellcheck disable=SC2086
    part train 280 "$@" bench.gpu $train --steps 400 --first 10 --between 15 \
        $extra $rows --out "$OUT/train.json"
    # shellcheck disable=SC2086
    part written 560 "$@" bench.gpu $written --steps 300 --first 10 --between 15 $extra $rows --out "$OUT/written.json"
    for gb in 1 16 32 64; do
        part "cpu-$gb" 560 "$@" bench --size-mb $((gb * 1000000000 >> 20)) --quick --work /dev/shm/bench \
            --only "${CPU_ONLY:-freeze,durable,final,lazy}" --out "$OUT/cpu-$gb.json"
    done
    part bring 150 "$@" bench.gpu.bring --gb "$bring" --runtime "$runtime" --verbose --out "$OUT/bring.json"
    # shellcheck disable=SC2086
    part notice 120 "$@" bench.gpu.notice --gb "$small" --steps 120 --first 20 $extra --python "$python" --runtime "$runtime" --out "$OUT/notice.json"
    case " $wanted " in *" demo "* | *" guide "*) for_controller ;; esac
    # shellcheck disable=SC2086
    part demo 300 "$@" bench.gpu.demo --gb "$small" $standin --python "$python" --runtime build/lease --out "$OUT/demo.json"
    case " $wanted " in *" guide "*) of_guide "$own" ;; esac
    part guide 240 env SPOTSURFER_RUNTIME__PATH="$tree/build/lease" PY="$python" bash -e build/lease/guide.sh
    [ ! -e "$OUT/guide.log" ] || for promise in "what it printed is identical" "weights are identical: True"; do
        grep -q "$promise" "$OUT/guide.log" || echo "   NOT said: $promise"
    done
    # shellcheck disable=SC2086
    part faults 400 "$@" bench.gpu.faults --gb "$faults" $standin --runtime "$runtime" --out "$OUT/faults.json"
    part driver 45 env SPOTSURFER_TEST_CUDA=real PYTHONPATH="$tree/wire:$tree/agent:$tree/tests" "$python" -m pytest -q \
        -p no:cacheprovider tests/agent/test_cuda_driver.py
}

"$@"
