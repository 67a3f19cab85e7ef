#!/usr/bin/env bash
# Makes what a guest boots from: Debian's kernel and an initramfs with the modules of Soft-RoCE.
#
#   vm/prepare.sh       prints the folder that holds `kernel` and `initramfs`
#
# All is kept in ${LOCH_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/loch-vm}: a second run makes
# nothing. Remove that folder for a newer kernel. Installs nothing: scripts/deps.sh verbs does.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin" # depmod and modprobe, which are not on every user's path.
here=$(cd "$(dirname "$0")" && pwd)
cache=${LOCH_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/loch-vm}

# crc32*: rxe looks for its checksum by name when a device is added. sch_netem: a bad wire, by `tc`.
modules=(virtio_pci virtio_net 9p 9pnet_virtio overlay dummy crc32_generic crc32c_generic
  rdma_rxe ib_uverbs rdma_ucm sch_netem)

fail() { printf 'vm: %s\n' "$@" >&2; exit 1; }

need() { # PROGRAM PACKAGE
  command -v "$1" >/dev/null ||
    fail "missing: $1, of the package $2." "Run 'scripts/deps.sh verbs', or install it."
}

# Puts the package of the kernel into the cache. The cloud kernel would be smaller, but has no rxe.
download_kernel() {
  local name
  # The meta package depends on the one kernel that is current.
  name=$(apt-cache depends linux-image-amd64 2>/dev/null |
    sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
  [ -n "$name" ] || return 1
  echo "vm: downloading $name" >&2
  rm -rf "$cache/download"
  mkdir "$cache/download"
  (cd "$cache/download" && apt-get -qq download "$name") >"$cache/apt.log" 2>&1 || return 1
  mv "$cache/download/"*.deb "$cache/"
  rm -r "$cache/download" "$cache/apt.log"
}

# Knows no package, or knows one that the archive has replaced: the lists of packages are old.
update_lists() {
  [ "$(id -u)" -eq 0 ] || set -- sudo -n
  "$@" apt-get -qq update >"$cache/apt.log" 2>&1
}

find_package() {
  find "$cache" -maxdepth 1 -name 'linux-image-*_amd64.deb' | sort -V | tail -n 1
}

unpack_kernel() {
  local package version
  package=$(find_package)
  if [ -z "$package" ]; then
    download_kernel || { update_lists && download_kernel; } || {
      [ ! -s "$cache/apt.log" ] || cat "$cache/apt.log" >&2
      fail "cannot download the kernel, which is what the package linux-image-amd64 depends on." \
        "Run 'apt-get update' and try again, or put a linux-image-…_amd64.deb of Debian" \
        "(not the cloud kernel) into $cache."
    }
    package=$(find_package)
  fi
  echo "vm: unpacking $(basename "$package")" >&2
  rm -rf "$cache/kernel" "$cache/kernel.new"
  dpkg -x "$package" "$cache/kernel.new"
  version=$(ls "$cache/kernel.new/lib/modules")
  depmod -b "$cache/kernel.new" "$version"
  plain_kernel "$cache/kernel.new/boot/vmlinuz-$version" "$cache/kernel.new/plain"
  echo "$version" >"$cache/kernel.new/version"
  mv "$cache/kernel.new" "$cache/kernel"
}

# Paths of the modules and all that they need, each after what it depends on.
module_files() {
  local module
  for module in "${modules[@]}"; do
    modprobe -d "$cache/kernel" -S "$version" --show-depends "$module" ||
      fail "the kernel $version has no module $module." \
        "Put another linux-image-…_amd64.deb into $cache and remove $cache/kernel."
  done | sed -n 's/^insmod \(.*\.ko\).*/\1/p' | awk '!seen[$0]++'
}

# Takes the kernel out of its own compression, which is half of the boot on an emulated processor.
# One that is compressed in another way boots as it is.
plain_kernel() { # FROM TO
  local start
  start=$(LC_ALL=C grep -abom 1 -P '\xfd7zXZ\0' "$1" | head -n 1 | cut -d : -f 1)
  # Something follows the compressed part, of which xz complains.
  tail -c "+$((${start:-0} + 1))" "$1" | xz -dc --single-stream >"$2" 2>/dev/null || true
  [ "$(head -c 4 "$2" | tail -c 3)" = ELF ] || cp "$1" "$2"
}

# Uncompressed, for the same reason.
make_boot_folder() {
  local new=$1.new version
  version=$(<"$cache/kernel/version")
  echo "vm: making the initramfs for $version" >&2
  rm -rf "$new"
  mkdir -p "$new/root"/{bin,dev,lib,proc,sys}
  cp "$(command -v busybox)" "$new/root/bin/busybox"
  ln -s busybox "$new/root/bin/sh"
  install -m 755 "$here/init" "$new/root/init"
  module_files >"$new/files"
  while read -r file; do
    cp "$file" "$new/root/lib/"
    basename "$file" >>"$new/root/lib/order"
  done <"$new/files"
  (cd "$new/root" && find . | cpio --quiet -o -H newc) >"$new/initramfs"
  ln -s ../kernel/plain "$new/kernel"
  rm -r "$new/root" "$new/files"
  mv "$new" "$1"
}

# What is made depends on these two files, so that a change of them makes it anew.
boot="$cache/boot-$(cat "$here/init" "$here/prepare.sh" | sha256sum | cut -c 1-12)"
if [ ! -d "$boot" ]; then
  [ "$(uname -m)" = x86_64 ] || fail "only x86-64 hosts are supported, this is $(uname -m)."
  need apt-get apt
  need dpkg dpkg
  need depmod kmod
  need cpio cpio
  need busybox busybox-static
  need xz xz-utils
  need flock util-linux
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9 # Others may prepare at the same time.
  [ -d "$cache/kernel" ] || unpack_kernel
  [ -d "$boot" ] || {
    # What earlier versions of the two files made, and no run of today uses.
    find "$cache" -maxdepth 1 -name 'boot-*' -mtime +1 -exec rm -r {} +
    make_boot_folder "$boot"
  }
fi
echo "$boot"
