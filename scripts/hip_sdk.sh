#!/usr/bin/env bash
# Fetches what compiling HIP needs on Debian, without a ROCm installation and without an AMD card: HIP's headers (those
# for HIP's NVIDIA platform among them) and AMD's device libraries, unpacked into .hip-sdk/, which git ignores. As root it
# also installs clang 19 and HIP's runtime library. Safe to run again: what is there already is kept.
#
#   bash scripts/hip_sdk.sh                 # then build with QWEN3TTS_HIP=ON QWEN3TTS_ROCM_PATH=$PWD/.hip-sdk/root/usr
#   bash scripts/hip_sdk.sh --print-path    # prints that path once all is there; exit status 1 if something is missing
#
# The packages come from the Debian mirror that this machine's apt uses already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

suite=trixie  # the last Debian release whose HIP headers serve both AMD and NVIDIA, with bitcode that clang 19 reads
packages=(libamdhip64-dev rocm-device-libs-17)
tools=(clang-19 lld-19 clang-tools-19 libamdhip64-5)
sdk="$PWD/.hip-sdk"
root="$sdk/root"

device_libraries() { dirname "$(find "$root" -name ocml.bc -print -quit 2>/dev/null)" 2>/dev/null; }

missing() {
    local file
    for file in amd_detail/amd_hip_runtime.h nvidia_detail/nvidia_hip_runtime.h hip_runtime.h hip_version.h; do
        [ -f "$root/usr/include/hip/$file" ] || echo "the header hip/$file"
    done
    [ -f "$(device_libraries)/ocml.bc" ] || echo "the device library ocml.bc"
    command -v clang++-19 >/dev/null || echo "clang++-19"
    command -v clang-offload-bundler-19 >/dev/null || echo "clang-offload-bundler-19"
    command -v ld.lld-19 >/dev/null || echo "ld.lld-19"
}

case "${1:-}" in
    "" | --print-path) [ $# -le 1 ] || die "one argument at most" ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) die "there is no argument $1; see --help" ;;
esac
if [ "${1:-}" = --print-path ]; then
    [ -z "$(missing)" ] || die "the HIP toolchain is not complete: $(missing | paste -sd, | sed 's/,/, /g'). Run: bash scripts/hip_sdk.sh"
    echo "$root/usr"
    exit 0
fi

[ -z "$(missing)" ] && ldconfig -p | grep -q 'libamdhip64[.]so' && { say "HIP toolchain is complete in .hip-sdk"; exit 0; }
command -v apt-get >/dev/null || die "this needs Debian's or Ubuntu's apt-get; elsewhere install ROCm and set QWEN3TTS_ROCM_PATH"

if [ "$(id -u)" = 0 ]; then
    say "installing ${tools[*]}"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${tools[@]}" >/dev/null \
        || die "apt-get could not install ${tools[*]}: run apt-get update first; Debian 12 or newer has them"
fi

if [ -n "$(missing)" ]; then
    say "fetching ${packages[*]} of $suite"
    # The mirror: of deb822 sources or of a one-line list, whichever this machine has.
    mirror="$(cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null \
        | awk '/^URIs:/ {print $2; exit} /^deb / {for (i = 2; i <= NF; i++) if ($i ~ /:\/\//) {print $i; exit}}' || true)"
    [ -n "$mirror" ] || die "no Debian mirror is set up in /etc/apt"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -f "$keyring" ] || die "$keyring is missing: install debian-archive-keyring"
    mkdir -p "$sdk/apt/lists/partial" "$sdk/apt/cache/archives/partial" "$sdk/packages"
    echo "deb [signed-by=$keyring] $mirror $suite main" >"$sdk/apt/sources.list"
    options=(-o "Dir::Etc::SourceList=$sdk/apt/sources.list" -o "Dir::Etc::SourceParts=-" -o "Dir::State::Lists=$sdk/apt/lists"
             -o "Dir::Cache=$sdk/apt/cache" -o "APT::Sandbox::User=$(id -un)" -o "Debug::NoLocking=1")
    apt-get "${options[@]}" -qq update || die "the index of $suite could not be fetched"
    (cd "$sdk/packages" && apt-get "${options[@]}" -qq download "${packages[@]}") || die "${packages[*]} could not be fetched"
    rm -rf "$root.new"
    for package in "$sdk"/packages/*.deb; do dpkg -x "$package" "$root.new"; done
    rm -rf "$root"
    mv "$root.new" "$root"
    rm -rf "$sdk/apt" "$sdk/packages"
fi

if [ -n "$(missing)" ]; then
    die "still missing: $(missing | paste -sd, | sed 's/,/, /g'). clang and its tools are installed as root, with: apt-get install ${tools[*]}"
fi
version="$(awk '/define HIP_VERSION_(MAJOR|MINOR|PATCH)/ {printf "%s%s", separator, $3; separator = "."}' "$root/usr/include/hip/hip_version.h")"
say "HIP $version and $(clang++-19 --version | head -1) are ready"
