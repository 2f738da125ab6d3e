# The engine with a job on this machine's own root, as three machines after one another: in a checkout, as root of a machine that
# has nothing to lose.
set -eux
SPOTSURFER_PREFIX=$(readlink -f build/runtime/current)/prefix
export SPOTSURFER_PREFIX PYTHONPATH="$PWD/tests:$PWD"
mkdir -p /run/store /run/share
cd /run/share
for scene in first_machine middle_machine last_machine; do
  mkdir -p /var/lib/spotsurfer
  python -m support.engine_scenes $scene $((32 << 20)) 1500 -
  rm -rf /var/lib/spotsurfer
done
rm -rf /run/store /run/share
