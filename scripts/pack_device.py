"""Packs what a GPU machine without a network lacks: ``python scripts/pack_device.py build/gpu``.

The machine brings Python 3.12 with torch, transformers and safetensors. The pack holds Triton out of the wheel of
nvidia-pytriton, without debug symbols and tables that nobody reads there; numpy 1.26, which Triton's Python backend
needs; and what else the extras ``server`` and ``service`` require, as ``locks/py312.txt`` says, but for ONNX and
OpenCV, without which a GPU serves. There, ``. build/gpu/unpack.sh FOLDER`` makes an environment of it that knows the
package in ``src``, puts its ``python3`` first on PATH, and sets TRITON to the server's folder.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
_PYTHON = "3.12"
_PLATFORMS = (
    "manylinux2014_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_35_x86_64",
    "any",
)
_NUMPY = "1.26.4"
#: Bytes; a call to the machine carries one beside the working tree.
_PIECE = 10_000_000
_EXTRAS = ("server", "service")
#: Requirements that the machine has, that are packed in another way, or that only CPUs and set-ups need.
_LEFT_OUT = frozenset(
    {"nvidia-pytriton", "numpy", "onnx", "onnxruntime", "opencv-python-headless", "tokenizers", "huggingface-hub"}
)
_TESTS = re.compile(r"(^|/)tests?/")
_UNPACK = """\
# Source this in the repository's root:  . build/gpu/unpack.sh FOLDER
mkdir -p "$1" && cat "$(dirname "${BASH_SOURCE[0]}")"/pack.* | tar xJf - -C "$1"
_base=$(python3 -c 'import site; print(site.getsitepackages()[0])')
python3 -m venv --without-pip "$1/env"
_site=$("$1/env/bin/python3" -c 'import site; print(site.getsitepackages()[0])')
cp -r "$1/site/." "$_site/" && echo "$_base" > "$_site/base.pth"
# These are made for the machine's own numpy.
echo "import sys; sys.modules['scipy'] = None; sys.modules['sklearn'] = None" > "$_site/aa_hide.pth"
# The backend's process reads no PYTHONPATH.
echo "$PWD/src" > "$_site/source.pth"
export TRITON="$1/pytriton/tritonserver" PATH="$1/env/bin:$PATH"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        pack = scratch / "pack"
        add_triton(download(scratch, _pinned(("nvidia-pytriton",))), pack)
        wheels = download(scratch, [f"numpy=={_NUMPY}", *_pinned(requirements("triton-sam", _EXTRAS))])
        add_wheels(wheels, pack / "site")
        archive = scratch / "pack.tar.xz"
        subprocess.run(["tar", "cJf", archive, "-C", pack, "."], check=True)
        for old in options.out.glob("pack.*"):
            old.unlink()
        subprocess.run(["split", "-b", str(_PIECE), "-d", archive, options.out / "pack."], check=True)
    (options.out / "unpack.sh").write_text(_UNPACK)
    for made in sorted(options.out.iterdir()):
        sys.stdout.write(f"{made}: {made.stat().st_size / 1e6:.1f} MB\n")
    return 0


def download(scratch: Path, requirements: list[str]) -> list[Path]:
    """Wheels for the machine's Python."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--python-version", _PYTHON, *platforms, "-d", folder, *requirements], check=True)
    return sorted(folder.iterdir())


def requirements(package: str, extras: Iterable[str]) -> list[str]:
    """What a package that is installed here requires on the machine, directly or not, without what is left out."""
    found: set[str] = set()
    waiting = [(package, extra) for extra in ("", *extras)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        for text in importlib.metadata.requires(name) or ():
            required = Requirement(text)
            other = canonicalize_name(required.name)
            if other in _LEFT_OUT or not (
                required.marker is None or required.marker.evaluate({"python_version": _PYTHON, "extra": extra})
            ):
                continue
            found.add(other)
            more = {(other, one) for one in ("", *required.extras)} - seen
            seen |= more
            waiting += more
    return sorted(found)


def _pinned(names: Iterable[str]) -> list[str]:
    lines = (ROOT / "locks" / f"py{_PYTHON.replace('.', '')}.txt").read_text().splitlines()
    pins = {re.split(r"[=\[]", line)[0].lower(): line.split(";")[0].strip() for line in lines if "==" in line}
    return [pins[name] for name in names]


def add_triton(wheels: list[Path], pack: Path) -> None:
    """The server with its libraries as its search path expects them, for one Python, and small."""
    (wheel,) = wheels
    with zipfile.ZipFile(wheel) as archive:
        wanted = [
            name for name in archive.namelist() if name.startswith(("pytriton/tritonserver/", "nvidia_pytriton.libs/"))
        ]
        archive.extractall(pack, wanted)
    server = pack / "pytriton" / "tritonserver"
    stub = server / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub"
    shutil.copy(stub, server / "backends" / "python" / stub.name)
    shutil.rmtree(server / "python_backend_stubs")
    for path in pack.rglob("*"):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            path.chmod(0o755)
            subprocess.run(["strip", "--strip-unneeded", path], check=False, stderr=subprocess.DEVNULL)
            if path.name.startswith("libicudata"):
                _clear_tables(path)


def _clear_tables(library: Path) -> None:
    """Half of the pack would be tables of characters, which an XML library loads and Triton does not use."""
    listed = subprocess.run(["readelf", "-SW", library], check=True, capture_output=True, text=True).stdout
    found = re.search(r"\.rodata\s+\w+\s+[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)", listed)
    assert found is not None
    start, size = (int(number, 16) for number in found.groups())
    with library.open("r+b") as file:
        file.seek(start)
        file.write(bytes(size))


def add_wheels(wheels: list[Path], site: Path) -> None:
    """What the wheels hold, without tests."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [name for name in archive.namelist() if not _TESTS.search(name)])


if __name__ == "__main__":
    sys.exit(main())
