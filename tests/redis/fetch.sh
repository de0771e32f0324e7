#!/bin/sh
# Gets Redis 7.0.15's source package from the Debian mirror that this machine uses, and lays its
# test suite out for run.sh.
#
#   fetch.sh DIR
set -eu

dir=$1
file=redis_7.0.15.orig.tar.gz
sum=4b1dc4ee6d622a09fff9c6777191209750fb5e5a725ef78ea012d6eef4c22982
[ -x "$dir/runtest" ] && exit 0
mkdir -p "$dir/src"
for mirror in $(apt-get indextargets --format '$(REPO_URI)' | sort -u); do
    if /usr/lib/apt/apt-helper download-file "${mirror%/}/pool/main/r/redis/$file" "$dir/$file" "SHA256:$sum"; then
        tar -xzf "$dir/$file" -C "$dir" --strip-components=1 --wildcards '*/tests' '*/runtest'
        # The suite wants to see these beside it.
        for program in redis-server redis-cli redis-benchmark; do
            ln -sf "$(command -v $program)" "$dir/src/$program"
        done
        exit 0
    fi
done
echo "fetch.sh: no mirror of this machine's apt has $file" >&2
exit 1
