#!/bin/sh
# Checks what systemd would say to the files in this folder. Any word of it is a failure.
# Programs that are not installed are stood in for by one that is.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for unit in "$here"/*.service; do
    copy=$work/$(basename "$unit")
    cp "$unit" "$copy"
    program=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$unit")
    [ -x "$program" ] || sed -i "s|^\(Exec[A-Za-z]*\)=$program|\1=$(command -v true)|" "$copy"
done

failed=0
for unit in "$work"/*.service; do
    said=$(systemd-analyze verify --man=no --recursive-errors=no "$unit" 2>&1) || failed=1
    if [ -n "$said" ]; then
        printf '%s: %s\n' "$(basename "$unit")" "$said" >&2
        failed=1
    fi
done

said=$(systemd-sysusers --dry-run "$here/sysusers.d/annex.conf" 2>&1) || failed=1
case $said in
*ailed* | *nknown* | *nvalid*) printf 'sysusers.d/annex.conf: %s\n' "$said" >&2 && failed=1 ;;
esac

# systemd 252 has no dry run for tmpfiles: an empty root takes the real one.
mkdir -p "$work/root/etc"
printf 'root:x:0:0::/root:/bin/sh\n' > "$work/root/etc/passwd"
printf 'root:x:0:\n' > "$work/root/etc/group"
said=$(systemd-tmpfiles --create --root="$work/root" "$here/tmpfiles.d/annex.conf" 2>&1) || failed=1
if [ -n "$said" ] || [ ! -d "$work/root/run/annex" ]; then
    printf 'tmpfiles.d/annex.conf: %s\n' "$said" >&2
    failed=1
fi

[ "$failed" = 0 ] && echo "systemd accepts its files"
exit "$failed"
