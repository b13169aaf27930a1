#!/usr/bin/env bash
# Prints the path of a `swift` that runs here: the one on PATH, or one in a Debian root that this script makes
# in build/swift, which takes about three minutes and 3.3 GB, and needs root, debootstrap and Debian's archive.
# Where there is neither, it says so in one line and exits with 3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# One that runs in this folder: a container or a root of its own may not see it.
if (swift --version) >/dev/null 2>&1; then
    command -v swift
    exit 0
fi
root=$PWD/build/swift/root
swift=$PWD/build/swift/bin/swift
if [ ! -x "$swift" ] || [ ! -x "$root/usr/bin/git" ]; then
    if [ "$(id -u)" != 0 ] || ! { command -v debootstrap || apt-get install -y debootstrap; } >/dev/null 2>&1; then
        echo "no swift on PATH that runs here, and no debootstrap to make a root with one" >&2
        exit 3
    fi
    # What is mounted is gone with the namespace, also if this is killed: no root is deleted with mounts in it.
    rm -rf --one-file-system "$root"
    mkdir -p "$(dirname "$swift")"
    unshare --mount sh -ec '
        debootstrap --variant=minbase --include=ca-certificates trixie "$0"
        cp /etc/resolv.conf "$0/etc/"
        chroot "$0" sh -c "apt-get update && apt-get install -y --no-install-recommends swiftlang libc6-dev git"
    ' "$root" >build/swift/toolchain.log 2>&1 || {
        rm -rf --one-file-system "$root"
        echo "no swift on PATH that runs here, and Debian's could not be installed (build/swift/toolchain.log)" >&2
        exit 3
    }
    cat >"$swift" <<END
#!/bin/sh
# Swift in its root, which sees this machine's files under their own paths. The namespace ends with the command, so that
# nothing stays mounted.
exec unshare --mount sh -c '
    root=$root
    mount -t proc proc "\$root/proc"
    for folder in /dev /tmp "$PWD"; do mkdir -p "\$root\$folder"; mount --bind "\$folder" "\$root\$folder"; done
    exec chroot "\$root" /bin/sh -c "cd \"\\\$0\" && exec /usr/bin/swift \"\\\$@\"" "\$PWD" "\$@"
' sh "\$@"
END
    chmod +x "$swift"
fi
echo "$swift"
