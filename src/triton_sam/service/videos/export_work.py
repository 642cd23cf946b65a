"""Writes what was found in a video as one file; runs in :mod:`.child_process`."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from triton_sam import __version__
from triton_sam.core.images import EncodedImage
from triton_sam.service.videos.frame_store import FrameStore
from triton_sam.video.annotations import VideoFacts, write_coco, write_youtube_vis
from triton_sam.video.found import VideoFrame
from triton_sam.video.label_frames import LabelFolder
from triton_sam.video.overlays import OverlayVideo
from triton_sam.video.results import ResultFile
from triton_sam.video.stacks.label_volumes import label_volume
from triton_sam.video.stacks.scale import Scale, VolumeForm

_COLOURS = 255


def export(request: dict[str, Any]) -> dict[str, Any]:
    """Writes the file that is asked for; nothing more is to be told of it."""
    folder, limits = Path(request["folder"]), request["limits"]
    store = FrameStore(folder)
    results = ResultFile(folder / request["results"], tuple(request["size"]))
    job = _Export(request, folder / request["target"], store, results)
    match request["form"]:
        case "mp4":
            job.overlay(limits)
        case "png":
            job.label_images()
        case "tiff":
            job.volume()
        case form:
            job.annotations(form)
    return {"bytes": job.target.stat().st_size}


class _Export:
    def __init__(self, request: dict[str, Any], target: Path, store: FrameStore, results: ResultFile) -> None:
        self.target = target
        self._request, self._store, self._results = request, store, results
        self._objects: list[int] = request["objects"]
        self._size: tuple[int, int] = results.size

    def _frames(self) -> Iterator[VideoFrame | None]:
        return (self._results.get(index) for index in range(self._store.count))

    def overlay(self, limits: dict[str, Any]) -> None:
        # The colours of the label images, where these have any.
        are_small = all(name <= _COLOURS for name in self._objects)
        values = {name: name if are_small else place + 1 for place, name in enumerate(self._objects)}
        with OverlayVideo(self.target, self._size, self._request["fps"]) as video:
            for index, found in enumerate(self._frames()):
                frame = self._store.read(index)
                video.add(_pixels(frame.data, limits), found, values, frame.seconds)

    def label_images(self) -> None:
        images = LabelFolder(self.target.with_suffix(".images"), self._size, self._objects)
        with zipfile.ZipFile(self.target, "w", zipfile.ZIP_STORED) as archive:
            for index, found in enumerate(self._frames()):
                path = images.write(index, found)
                archive.write(path, path.name)
                path.unlink()

    def volume(self) -> None:
        form = dict(self._request["volume"])
        volume = VolumeForm(**{**form, "scale": Scale(**form["scale"])})
        with label_volume(self.target, volume, self._store.count, self._size, self._objects) as put:
            for found in self._frames():
                put(found)

    def annotations(self, form: str) -> None:
        facts = VideoFacts(
            self._request["name"],
            self._size,
            self._store.count,
            lambda index: f"{index:06d}.png",
            self._objects,
            f"Tracked with triton-sam {__version__}",
        )
        (write_coco if form == "coco" else write_youtube_vis)(self.target, self._results, facts)


def _pixels(data: bytes, limits: dict[str, Any]) -> Image.Image:
    return EncodedImage(data, max_bytes=limits["frame_bytes"], max_pixels=limits["frame_pixels"]).pixels()
