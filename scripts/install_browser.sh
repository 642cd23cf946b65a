#!/usr/bin/env bash
# usage: install_browser.sh      prints the path of a Chromium for the browser tests; if there is none and apt-get may be
#                                used, Debian's is installed. CHROMIUM=/path names one that is elsewhere.
set -euo pipefail

# Ubuntu has a placeholder that only prints how to install its snap: it prints no version.
works() {
    "$1" --version >/dev/null 2>&1
}

find_browser() {
    local name path
    for name in "${CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
        if [ -n "$name" ] && path=$(type -P "$name") && works "$path"; then
            echo "$path"
            return 0
        fi
    done
    return 1
}

install_browser() {
    export DEBIAN_FRONTEND=noninteractive
    # Without a font, text has no glyphs and no size.
    apt-get -qq update >/dev/null &&
        apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null
}

if find_browser; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && install_browser && find_browser; then
    exit 0
fi
echo "no Chromium for the browser tests: install one (Debian: apt-get install chromium fonts-dejavu-core, as root)," \
    "or name one with CHROMIUM=/path/to/chrome" >&2
exit 1
