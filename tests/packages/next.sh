#!/bin/bash
# The packages of DIR once more in OUT, as a later version with other programs: what an upgrade is
# tested with. usage: next.sh DIR OUT
set -euo pipefail

from=${1:?usage: next.sh DIR OUT} to=${2:?usage: next.sh DIR OUT}
mkdir -p "$to"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in "$from"/*.deb; do
    tree=$work/$(basename "$package" .deb)
    dpkg-deb --raw-extract "$package" "$tree"
    sed -i 's/^Version: .*/&+next/' "$tree/DEBIAN/control"
    for program in "$tree"/usr/bin/*; do
        echo "another build" >>"$program"
    done
    dpkg-deb --root-owner-group -Zgzip -z1 --build "$tree" "$to" >/dev/null
done
