#!/bin/sh
# Gets the regression tests of a PostgreSQL from the Debian mirror that this machine uses; apt
# verifies them.
# Sources of security updates are not on every mirror. Tests of another minor version do as well.
#
#   fetch.sh DIR MAJOR
set -eu

dir=$(mkdir -p "$1" && cd "$1" && pwd)
package=postgresql-$2
[ -d "$dir/src/test/regress/sql" ] && exit 0
. /etc/os-release
lists=$dir/apt
mkdir -p "$lists/lists/partial" "$lists/cache"
for uri in $(apt-get indextargets --format '$(REPO_URI)|$(RELEASE)' 'Created-By: Packages' | sort -u); do
    case $uri in *security*) ;; *"$VERSION_CODENAME"*) echo "deb-src ${uri%%|*} ${uri#*|} main" ;; esac
done >"$lists/sources.list"
apt="-o Dir::Etc::sourcelist=$lists/sources.list -o Dir::Etc::sourceparts=/dev/null
     -o Dir::State::lists=$lists/lists -o Dir::Cache=$lists/cache -o APT::Sandbox::User=root"
# shellcheck disable=SC2086 # one word each
apt-get -qq $apt update
# shellcheck disable=SC2086
(cd "$lists" && apt-get -qq $apt source --download-only "$package")
tar -xf "$lists/$package"_*.orig.tar.* -C "$dir" --strip-components=1 --wildcards '*/src/test/regress'
