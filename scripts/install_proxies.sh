#!/usr/bin/env bash
# usage: install_proxies.sh      prints the paths of HAProxy and nginx for the tests of several servers; where one is missing
#                                and apt-get may be used, Debian's is installed. Neither is started as a service of this machine.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"  # where Debian puts them, which is on root's path only

find_proxies() {
    type -P haproxy && type -P nginx
}

install_proxies() {
    export DEBIAN_FRONTEND=noninteractive
    # Packages start their daemons, which would take the ports of whatever runs here.
    local policy=/usr/sbin/policy-rc.d made=""
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=yes
    fi
    local status=0
    { apt-get -qq update && apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends haproxy nginx-light; } \
        >/dev/null || status=$?
    [ -z "$made" ] || rm -f "$policy"
    return "$status"
}

if find_proxies >/dev/null; then
    find_proxies
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && install_proxies && find_proxies; then
    exit 0
fi
echo "no HAProxy or no nginx for the tests of several servers: install them (Debian: apt-get install haproxy nginx-light," \
    "as root)" >&2
exit 1
