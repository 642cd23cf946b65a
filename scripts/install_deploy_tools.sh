#!/usr/bin/env bash
# usage: install_deploy_tools.sh  prints the paths of the programs that deployment files are tested with (HAProxy, nginx,
#                                 Prometheus' promtool and shellcheck, which PyPI has for x86_64 only); if one is missing and
#                                 apt-get may be used, Debian's is installed. None is started as a service of this machine.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"  # Debian installs some of them there, which is on root's path only

find_tools() {
    type -P haproxy && type -P nginx && type -P promtool && type -P openssl && type -P curl && type -P shellcheck
}

install_tools() {
    export DEBIAN_FRONTEND=noninteractive
    # Packages start their daemons, which would take ports that other programs here may use.
    local policy=/usr/sbin/policy-rc.d made=""
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=yes
    fi
    local status=0
    {
        apt-get -qq update &&
            apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends haproxy nginx-light prometheus openssl curl \
            shellcheck
    } >/dev/null || status=$?
    [ -z "$made" ] || rm -f "$policy"
    return "$status"
}

if find_tools >/dev/null; then
    find_tools
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && install_tools && find_tools; then
    exit 0
fi
echo "programs for the tests of deployment files are missing: install them (Debian, as root: apt-get install haproxy" \
    "nginx-light prometheus openssl curl shellcheck)" >&2
exit 1
