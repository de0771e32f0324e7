#!/bin/bash
# The guests' disk, kernel and initramfs, in DIR: a small Debian of the release that runs here (so
# that what is built here runs there), with a kernel that has UFFDIO_MOVE (6.8 or newer) and
# Soft-RoCE. Made anew when something in this folder has changed. usage: image.sh DIR
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: image.sh DIR}"
cd "$1"

packages=systemd,systemd-sysv,udev,dbus,kmod,iproute2,iputils-ping,procps,psmisc,strace
packages+=,rdma-core,ibverbs-utils,ibverbs-providers,librdmacm1,perftest,redis-server,redis-tools

recipe=$(cat "$here"/* /etc/debian_version | sha256sum)
[ "$(cat recipe 2>/dev/null)" = "$recipe" ] && exit 0
rm -rf recipe work
mkdir work
trap 'rm -rf work' EXIT

# The name of the newest kernel package that will do.
kernel_package() {
    local meta
    for meta in linux-image-6.12-amd64 linux-image-amd64; do
        apt-cache depends "$meta" 2>/dev/null | sed -n 's/.*Depends: \(linux-image-\(6\.\([89]\|[1-9][0-9]\)\|[7-9]\)\..*\)/\1/p' | head -1
    done | head -1
}

# Unpacked, not installed: nothing of this machine changes.
kernel() {
    local package
    package=$(kernel_package)
    if [ -z "$package" ]; then
        apt-get update -qq
        package=$(kernel_package)
    fi
    if [ -z "$package" ]; then
        echo "no Debian kernel of 6.8 or newer is to be had here: on Debian 12, have bookworm-security or bookworm-backports among apt's sources" >&2
        exit 1
    fi
    echo "kernel: $package"
    # Run by root, apt wants to read as its own user; in a directory that it can't enter it says so,
    # and does without.
    (cd work && apt-get download -qq -o APT::Sandbox::User=root "$package" && dpkg -x linux-image-*.deb kernel && rm linux-image-*.deb)
    version=$(ls work/kernel/lib/modules)
    depmod -b work/kernel "$version"
}

# Files of modules and of all they need, in the order in which they are to be loaded.
modules() {
    local module
    for module; do
        modprobe -d work/kernel -S "$version" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | awk '!seen[$0]++'
}

root() {
    local sources
    sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' 'Component: main')
    # A machine whose lists were never fetched does not know yet whose they are.
    [ -n "$sources" ] || sources="deb http://deb.debian.org/debian $(. /etc/os-release && echo "$VERSION_CODENAME") main"
    mmdebstrap --quiet --variant=minbase --include="$packages" --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        "" work/root - <<<"$sources"
    # crc32 is what Soft-RoCE asks the kernel's crypto for by name.
    (cd work/kernel && cp --parents $(cd ../.. && modules virtio_net virtio_console crc32_generic rdma_rxe rdma_ucm ib_umad dummy | sed 's|.*work/kernel/||') ../root)
    cp work/kernel/lib/modules/"$version"/modules.{builtin,builtin.modinfo,order} work/root/lib/modules/"$version"/
    depmod -b work/root "$version"
    sed -i 's/^root:[^:]*:/root::/' work/root/etc/shadow
    : >work/root/etc/machine-id
    install -Dm644 "$here/guest.service" work/root/etc/systemd/system/guest.service
    install -Dm644 "$here/journald.conf" work/root/etc/systemd/journald.conf.d/guest.conf
    mkdir -p work/root/payload
    echo "/dev/vdb /payload ext4 ro,nofail 0 0" >work/root/etc/fstab
    local unit
    chroot work/root systemctl --quiet enable guest.service
    chroot work/root systemctl --quiet disable redis-server.service
    # Nobody logs in, nothing is ever updated.
    for unit in getty.target apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer e2scrub_all.timer e2scrub_reap.service \
        systemd-logind.service systemd-update-utmp.service systemd-update-utmp-runlevel.service; do
        ln -sf /dev/null work/root/etc/systemd/system/$unit
    done
    mke2fs -q -t ext4 -d work/root -E root_owner=0:0,lazy_itable_init=1 work/root.img 2G
}

# Only what it takes to mount the disk.
initramfs() {
    local file
    mkdir -p work/init/{bin,dev,proc,sys,newroot}
    cp "$(command -v busybox)" work/init/bin/busybox
    modules crc32c_generic virtio_pci virtio_blk ext4 | while read -r file; do
        name=$(basename "${file%.xz}")
        case $file in
        *.xz) xz -dc "$file" >"work/init/$name" ;;
        *) cp "$file" "work/init/$name" ;;
        esac
        echo "$name"
    done >work/modules
    mv work/modules work/init/modules
    install -m755 "$here/init" work/init/init
    (cd work/init && find . -print0 | cpio --quiet --null -o -H newc | gzip -1) >work/initrd
}

kernel
root
initramfs
cp work/kernel/boot/vmlinuz-* work/vmlinuz
mv work/root.img work/initrd work/vmlinuz .
echo "$recipe" >recipe
