#!/bin/bash
# Install what Invigilator needs on Debian or Ubuntu: system packages (as root), then a virtual environment.
#   ./setup.sh [VENV] [peers|slow]  peers: also what `guard bench` measures the sensor beside
#                                   slow: also what `make test-slow` boots
# Without root the system packages are only checked: offline commands work without them.
set -euo pipefail
cd "$(dirname "$0")"
venv=${1:-.venv}

# What runs the guard on a node: the sensor, the launcher, the policy compilers.
node="python3 python3-venv python3-seccomp apparmor python3-apparmor python3-libapparmor
      clang llvm libbpf-dev gcc libc6-dev make e2fsprogs nftables iproute2 git util-linux"
# What the tests use besides: real peers, real file systems, a real ClickHouse listener.
tests="python3-pip xfsprogs strace npm procps curl ca-certificates dpkg-dev zip unzip xz-utils sqlite3 lsof"
# A kernel with AppArmor, as a program (tests/apparmor). `make test-slow` boots Debian's own too, in QEMU. Not every
# architecture has them; where they cannot be had, the tests in those kernels are skipped and say so.
kernels="user-mode-linux busybox-static"
# Docker's daemon, of which the container backend's tests start one of their own. Not where installing it would start
# it, and thereby change the machine's network: there those tests are skipped, and say so.
if ! command -v dockerd >/dev/null && ! [ -d /run/systemd/system ]; then kernels="$kernels docker.io"; fi
if [ "${2:-}" = slow ]; then kernels="$kernels qemu-system-x86 systemd dbus"; fi

peers="bpftrace python3-bpfcc linux-headers-$(dpkg --print-architecture 2>/dev/null || echo amd64)"
if [ "${2:-}" = peers ]; then tests="$tests $peers"; fi

missing() { for p in "$@"; do dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || echo "$p"; done; }

# What is missing of some packages is installed; without root it is only named. First what they are for.
ensure() {
	local what=$1 need
	shift
	need=$(missing "$@")
	if [ -z "$need" ]; then return; fi
	if [ "$(id -u)" != 0 ]; then
		echo "setup: $what; as root, run: apt-get install" $need >&2
		return
	fi
	echo "setup: installing" $need
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq && apt-get install -y -qq --no-install-recommends $need >/dev/null
}

if ! command -v dpkg-query >/dev/null; then
	echo "setup: this is neither Debian nor Ubuntu; install the equivalents of:" $node $tests >&2
else
	# A newer npm than the distribution's may be there already, outside its package manager.
	if command -v npm >/dev/null; then tests=${tests/npm/}; fi
	ensure "sandboxes and tests need packages" $node $tests
	ensure "tests in other kernels and containers need packages" $kernels ||
		echo "setup: tests in other kernels are skipped: no" $(missing $kernels) >&2
fi

# The distribution's own Python, since its bindings (seccomp, AppArmor) come as packages for it alone.
python=/usr/bin/python3
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
	echo "setup: Python 3.11 or newer is needed; $python is $("$python" --version)" >&2
	exit 1
}
if ! [ -x "$venv/bin/python" ]; then
	"$python" -m venv --system-site-packages "$venv"
	"$venv/bin/pip" install -q --upgrade pip
fi
echo "setup: installing Python packages into $venv"
"$venv/bin/pip" install -q -e '.[node,serve,test]'
