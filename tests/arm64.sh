#!/usr/bin/env bash
# Runs dist/sediment-linux-arm64-*.pyz on this machine: Debian's Python for arm64, by qemu's user
# emulation. Needs Debian or Ubuntu (apt-get, dpkg) and the network, but no root: packages are
# unpacked into a folder of their own. Use: tests/arm64.sh [FOLDER]   (build/arm64, kept for again)
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$(realpath -m "${1:-$here/build/arm64}")
root=$folder/root

fail() { echo "arm64: $*" >&2; exit 1; }
command -v apt-get >/dev/null && command -v dpkg >/dev/null || fail "this needs Debian's apt-get and dpkg"

# apt with lists, a cache and a record of installed packages of its own, in which nothing is.
# $1 is the architecture; packages' own scripts are not run.
fetch() {
    local machine=$1 place=$folder/$1; shift
    mkdir -p "$place"/{lists/partial,archives/partial} "$folder/state"
    : >"$place/status"
    local options=(-qq -o "APT::Architecture=$machine" -o "APT::Architectures=$machine"
        -o "Dir::State=$folder/state" -o "Dir::State::lists=$place/lists"
        -o "Dir::State::status=$place/status" -o "Dir::Cache=$place"
        -o "Dir::Cache::archives=$place/archives" -o "APT::Sandbox::User=$(id -un)")
    apt-get "${options[@]}" update
    apt-get "${options[@]}" --no-install-recommends --download-only --yes install "$@" >/dev/null
}

# onnxruntime reads what kind of processor this is, and crashes where that tells of another machine.
cpuinfo() {
    mkdir -p "$root/proc"
    printf '%s\t: %s\n' processor 0 Features 'fp asimd aes pmull sha1 sha2 crc32' \
        'CPU implementer' 0x41 'CPU architecture' 8 'CPU variant' 0x0 'CPU part' 0xd08 \
        'CPU revision' 3 >"$root/proc/cpuinfo"
}

if [ ! -e "$folder/.ready" ]; then
    rm -rf "$folder"
    fetch "$(dpkg --print-architecture)" qemu-user-static
    fetch arm64 python3 libstdc++6
    mkdir -p "$root"
    for package in "$folder"/arm64/archives/*.deb; do dpkg -x "$package" "$root"; done
    dpkg -x "$folder"/*/archives/qemu-user-static_*.deb "$folder/qemu"
    cpuinfo
    rm -rf "$folder"/*/{archives,lists}
    touch "$folder/.ready"
fi
qemu=$(echo "$folder"/qemu/usr/bin/qemu-aarch64-static)
python=$(echo "$root"/usr/bin/python3.[0-9]*)
version=${python##*/python}
pyz=$here/dist/sediment-linux-arm64-cp${version/./}.pyz
[ -e "$pyz" ] || fail "no $pyz: build it with  make PLATFORM=linux-arm64 PYTHON=$version"

home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
sediment() {
    (cd "$home" && env -i PATH="$PATH" HOME="$home" SEDIMENT_PROJECT=arm64 \
        "$qemu" -L "$root" "$python" "$pyz" "$@" 2>"$home/stderr")
    [ ! -s "$home/stderr" ] || { cat "$home/stderr" >&2; return 1; }
}
# What is run after a pattern for what must come; shows that, and how long it took.
step() {
    local pattern=$1 begin=${EPOCHREALTIME/./} out took; shift
    out=$("$@") || fail "failed: $*"
    took=$(((${EPOCHREALTIME/./} - begin) / 100000))
    grep -qE -- "$pattern" <<<"$out" || fail "no $pattern from $*: $out"
    printf '%5d.%d s  %s\n           %s\n' $((took / 10)) $((took % 10)) "$*" \
        "$(grep -m1 -E -- "$pattern" <<<"$out" | cut -c1-200)"
}
serve() {
    sediment serve <<-END
	{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"arm64","version":"1"}}}
	{"jsonrpc":"2.0","method":"notifications/initialized"}
	{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"recall","arguments":{"query":"when may I release?"}}}
	END
}

emulated() { "$qemu" -L "$root" "$python" -c 'import platform as p; print(p.platform())'; }
step 'aarch64' emulated
step '^sediment [0-9]' sediment --version
step '^system Linux.*aarch64' sediment --version --verbose
step 'Stored' sediment store "We deploy on Fridays, after the canary is green."
step 'Stored' sediment store "The staging database listens on port 5433."
step 'canary' sediment recall "when may I release?" --limit 1
step '^ok +model' sediment doctor
step '"id": ?2.*canary' serve
echo "arm64: all is well"
