#!/bin/sh
# Makes this host ready for `make setup`: installs the Debian packages that are missing, or says what is.
# Runs from a terminal or from CI; changes nothing where nothing is missing.
set -eu

# What the controller, its boxes and the virtual environment need; then what the demo assembles; then programs of the tests.
PACKAGES="ca-certificates python3 python3-venv iproute2 nftables btrfs-progs util-linux mount kmod procps tini
megahit samtools bowtie-examples
bwa chromium iverilog gcc libc6-dev xfsprogs skopeo umoci debootstrap python3-jupyter-server python3-ipykernel ${EXTRA_PACKAGES:-}"
python=${SYSTEM_PYTHON:-/usr/bin/python3}
COMMANDS="ip nft mkfs.btrfs losetup mount unshare nsenter modprobe tini-static"

say() { printf '%s\n' "$*" >&2; }

python_is_new_enough() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

if ! command -v apt-get >/dev/null; then
    missing=
    for command in $COMMANDS; do command -v "$command" >/dev/null || missing="$missing $command"; done
    python_is_new_enough || missing="$missing $python(3.11 or newer)"
    if [ -n "$missing" ]; then
        say "This is not Debian, so nothing is installed for you. Missing here:$missing"
        say "Install them with this system's own package manager, then call make again."
        exit 1
    fi
    [ -n "${SPOTSURFER_DEBIAN_MIRROR:-}" ] || say "Not Debian: set SPOTSURFER_DEBIAN_MIRROR to a Debian mirror, the agent's runtime is made from it."
    exit 0
fi

missing=
for package in $PACKAGES; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        say "Debian packages are missing:$missing"
        say "Run make as root, or have them installed: apt-get install$missing"
        exit 1
    fi
    say "== install Debian packages:$missing"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    # shellcheck disable=SC2086 # a list of words
    if ! { apt-get -o DPkg::Lock::Timeout=300 -qq update &&
        apt-get -o DPkg::Lock::Timeout=300 -qq install -y --no-install-recommends $missing; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        say "apt could not install them: see above, then call make again."
        exit 1
    fi
    rm -f "$log"
fi
if ! python_is_new_enough; then
    say "$python is $("$python" --version 2>&1), and Python 3.11 or newer is needed: use Debian 12 or newer, or make SYSTEM_PYTHON=..."
    exit 1
fi

# Of the tests, too, but not to be installed: these packages would start a service on this host.
fetched() { # the program, then the packages that bring it
    program=$1
    shift
    if ! command -v "${program##*/}" >/dev/null && [ ! -x "build/tools/usr/$program" ]; then
        say "== fetch Debian's $1 into build/tools"
        mkdir -p build/tools/fetched
        (cd build/tools/fetched && apt-get -o APT::Sandbox::User=root -qq download "$@")
        for package in "$@"; do dpkg-deb -x build/tools/fetched/"${package}"_*.deb build/tools; done
    fi
}
fetched bin/docker-registry docker-registry
fetched sbin/sshd openssh-server libwrap0
fetched bin/prometheus prometheus
