#!/bin/bash
# The packages where there is no systemd, as in a container: installed, serving, upgraded, removed,
# purged. It runs in a copy of this machine's root (an overlay over it) with processes, mounts and a
# network of its own. What the purge leaves is seen in the overlay. usage: check.sh DIR
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${INSIDE:-}" ]; then
    packages=$(realpath "${1:?usage: check.sh DIR}")
    INSIDE=namespaces exec unshare --mount --net --pid --fork --kill-child "$0" "$packages"
fi

fail() {
    echo "FAILED: $*" >&2
    tail -n 20 /run/*.log >&2 || true
    exit 1
}

# A minute at most, for what takes a moment on an idle machine.
wait_for() {
    local what=$1
    shift
    for _ in $(seq 600); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "waited in vain for $what"
}

if [ "$INSIDE" = namespaces ]; then
    ip link set lo up
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/upper /mnt/work /mnt/root
    mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
    mount -t tmpfs tmpfs /mnt/root/run
    mount -t proc proc /mnt/root/proc
    mount --rbind /dev /mnt/root/dev
    mount --rbind /sys /mnt/root/sys
    mkdir /mnt/root/run/packages
    cp -r "$1" /mnt/root/run/packages/this
    "$here/next.sh" "$1" /mnt/root/run/packages/next
    cp "$here/check.sh" /mnt/root/run/check.sh
    INSIDE=root chroot /mnt/root /run/check.sh
    # What dpkg itself keeps of everything that was ever there is no part of the packages.
    left=$(cd /mnt/upper && find . -path ./var/log -prune -o -name '*annex*' ! -type c -print)
    [ -z "$left" ] || fail "the purge leaves $left"
    [ ! -e /mnt/root/run/annex ] || fail "the purge leaves /run/annex"
    ! grep -r '^annex' /mnt/root/etc/{group,gshadow,passwd} || fail "the purge leaves a group"
    echo "the packages do without systemd, and leave nothing"
    exit
fi

export DEBIAN_FRONTEND=noninteractive
cd /run

dpkg --install packages/this/*.deb
getent group annex >/dev/null || fail "there is no group annex"
! pgrep '^annex' || fail "the installation started something"
[ -z "$(find /etc/systemd -name '*annex*')" ] || fail "the installation enabled something"
[ -f /etc/annex/agent.toml ] && [ -f /etc/annex/annexd.toml ] || fail "there is no configuration"

sed -i -e 's/^# capacity = .*/capacity = "256M"/' -e 's/^# headroom = .*/headroom = "64M"/' /etc/annex/agent.toml
sed -i -e 's/^replicas = .*/replicas = 1/' -e '/^\[\[pool.donor/,$d' /etc/annex/annexd.toml
printf '[[pool.donor]]\naddress = "127.0.0.1:7411"\n' >>/etc/annex/annexd.toml
annex-agent check-config /etc/annex/agent.toml
annexd check-config

annex-agent --config /etc/annex/agent.toml >agent.log 2>&1 &
agent=$!
wait_for "the agent" annex-agent status
start_annexd() {
    annexd "$@" >>annexd.log 2>&1 &
    annexd=$!
    wait_for "annexd to be the one that was just started" sh -c "annex status && [ -d /proc/$annexd ]"
}
start_annexd

# Adds a line to `rounds` whenever it has checked all its memory, until `end` is there.
cat >program.py <<'PROGRAM'
import os
rows = [str(n) * 50 for n in range(200_000)]
while not os.path.exists("/run/end"):
    for n, row in enumerate(rows):
        assert row == str(n) * 50, f"row {n} is wrong"
    with open("/run/rounds", "a") as rounds:
        rounds.write("checked\n")
PROGRAM
more_rounds() {
    local so_far
    so_far=$(wc -l <rounds)
    wait_for "the program to go on" sh -c "[ \$(wc -l <rounds) -gt $((so_far + 1)) ]"
}
: >rounds
annex run --local 16M -- python3 program.py >program.log 2>&1 &
program=$!
wait_for "memory to be away" sh -c "annex apps --json | grep -E '\"evicted\": *[1-9]'"
more_rounds

kill -9 "$annexd"
wait "$annexd" || true
start_annexd
more_rounds

dpkg --install packages/next/*.deb
[ -d "/proc/$annexd" ] || fail "the upgrade ended annexd"
[ -d "/proc/$agent" ] || fail "the upgrade ended the agent"
before=$annexd
start_annexd --take-over
wait "$before" || fail "the annexd before did not hand over"
cmp "/proc/$annexd/exe" /usr/bin/annexd || fail "the annexd that runs is not the one that is installed"
more_rounds

touch end
wait "$program" || fail "the program failed"
kill "$annexd"
wait "$annexd" || fail "annexd did not stop in order"
kill "$agent"
wait "$agent" || fail "the agent did not stop in order"

dpkg --remove annex annexd annex-agent
[ -f /etc/annex/annexd.toml ] || fail "the removal took the configuration with it"
dpkg --purge annex annexd annex-agent
