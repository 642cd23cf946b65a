"""All videos of this process of the service: whose they are, how many there may be, and when they are deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from triton_sam.errors import NotServed, QueueFull
from triton_sam.service.admission.capacity import LocalTally, Tally
from triton_sam.service.gateway import Gateway
from triton_sam.service.served_models import ServedSegmenter
from triton_sam.service.telemetry.metrics import ServiceMetrics
from triton_sam.service.videos.absent import no_space, no_video
from triton_sam.service.videos.callers import is_owner
from triton_sam.service.videos.film import Film, FilmFacts
from triton_sam.service.videos.limits import VideoLimits
from triton_sam.service.videos.live import LiveVideo
from triton_sam.service.videos.sessions import ServiceVideoClient, end_within
from triton_sam.service.videos.spool import DiskBudget, Spool, VideoFolder, opened_spool
from triton_sam.service.videos.turns import Turns
from triton_sam.settings import Settings

log = logging.getLogger(__name__)

_VIDEOS = "videos"
#: How often it is looked for videos that nobody uses; more often if they are kept for a shorter time.
_SWEEP_SECONDS = 5.0
_CLOSE_SECONDS = 20.0
#: Weights of this project, for those who have no others.
_EMBEDDED = "sam2:tiny_video"


class Films:
    """The videos. Belongs to the event loop."""

    def __init__(
        self,
        gateway: Gateway,
        settings: Settings,
        metrics: ServiceMetrics,
        tally: Tally | None = None,
        process: int = 0,
    ) -> None:
        """
        Args:
            tally: counts over all processes of the service.
            process: number of this one, with which the ids of its videos begin.
        """
        self.settings = settings
        self.limits = VideoLimits.of(settings)
        self.decoders = Turns("read", settings.video_decoders, tally)
        self.exporters = Turns("exported", 1, tally)  # who waits for a file need not wait for all uploads
        self._gateway, self._metrics, self._process = gateway, metrics, process
        self._tally: Tally = tally or LocalTally()
        self._of_callers: Counter[str] = Counter()
        self._films: dict[str, Film] = {}
        self._clients: dict[str, ServiceVideoClient] = {}
        self._spool: Spool | None = None
        self._budget = DiskBudget(settings.video_disk_bytes, tally)

    # -- models ----------------------------------------------------------------------------------------------

    async def model(self, wanted: str | None) -> ServedSegmenter:
        """The model for a video; NotServed if none is served that remembers, or the named one does not."""
        known = await self._gateway.segmenters.all()
        remembering = {name: spec for name, spec in known.items() if spec.memory is not None}
        if not remembering:
            raise NotServed(
                "no model that remembers videos is served here: start `triton-sam serve sam2:tiny_video`, or set up "
                "Meta's weights with `triton-sam setup sam2.1:tiny`"
            )
        if wanted is None:
            others = {name: spec for name, spec in remembering.items() if spec.id != _EMBEDDED}
            return self._gateway.segmenters.choose(others or remembering, None)
        found = self._gateway.segmenters.choose(known, wanted)
        if found.name not in remembering:
            raise NotServed(
                f"{found.spec.id} does not remember videos: leave model out, or use one of {', '.join(remembering)}"
            )
        return found

    def _client(self, served: ServedSegmenter) -> ServiceVideoClient:
        if served.name not in self._clients:
            self._clients[served.name] = ServiceVideoClient(self._gateway, served)
        return self._clients[served.name]

    async def live(self, wanted: str | None) -> LiveVideo:
        """A video whose frames come from a camera. It is its socket's own."""
        return LiveVideo(self._client(await self.model(wanted)), self.limits, self.settings)

    # -- videos ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def place(self, caller: str) -> Iterator[None]:
        """Counts a further video in this block; QueueFull if there are too many."""
        most, most_here = self.settings.video_open, self.settings.video_open_per_caller
        if self._of_callers[caller] >= most_here:
            raise QueueFull(f"you have {most_here} videos here, and no more are allowed: delete one first")
        if self._tally.add(_VIDEOS, 1) > most:
            self._tally.add(_VIDEOS, -1)
            raise QueueFull(f"there are {most} videos here, and no more are allowed: try again later")
        self._of_callers[caller] += 1
        try:
            yield
        finally:
            self._tally.add(_VIDEOS, -1)
            self._of_callers[caller] -= 1
            if not self._of_callers[caller]:
                del self._of_callers[caller]

    def new_folder(self, caller: str) -> VideoFolder:
        """A place for the files of a further video; Unavailable if there is none."""
        try:
            if self._spool is not None:
                return self._spool.new(caller)
        except OSError as error:
            log.error("a video cannot be stored: %s", error)
        raise no_space()

    def new_id(self) -> str:
        """An id that nobody can guess: who knows it may use the video."""
        return f"{self._process}-{secrets.token_hex(16)}"

    def add(
        self,
        facts: FilmFacts,
        model: ServedSegmenter,
        folder: VideoFolder,
        place: contextlib.ExitStack | None = None,
    ) -> Film:
        """A video whose files are complete. It counts until it is removed.

        Args:
            place: its :meth:`place` if it counts already; taken over.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(place or self.place(facts.caller))
            film = Film(facts, model, self._client(model), folder, self.limits)
            film.when_closed = stack.pop_all().close
        self._films[facts.id] = film
        self.measure()
        return film

    def get(self, name: str, caller: str) -> Film:
        """A video of this caller; NotFound for all others."""
        film = self._films.get(name)
        if film is None or film.is_closed or not is_owner(caller, film.facts.caller):
            raise no_video()
        return film

    def of(self, caller: str) -> list[Film]:
        """The videos of a caller, the oldest first."""
        return [film for film in self._films.values() if film.facts.caller == caller and not film.is_closed]

    async def remove(self, film: Film) -> None:
        """Deletes a video."""
        try:
            await film.close()
        finally:
            if self._films.pop(film.facts.id, None) is not None:
                film.when_closed()
            self.measure()

    def measure(self) -> None:
        """Updates the metrics."""
        self._metrics.videos.set(len(self._films))
        self._metrics.video_frames.set(sum(film.frames for film in self._films.values()))
        self._metrics.video_bytes.set(sum(film.folder.bytes for film in self._films.values()))

    # -- from start to stop ----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Videos can be made in this block; they are deleted at its end."""
        with contextlib.ExitStack() as stack:
            try:
                self._spool = stack.enter_context(opened_spool(self._budget))
            except OSError as error:  # everything else is served all the same
                log.warning("videos are refused, because there is no temporary folder that can be written: %s", error)
            sweeper = asyncio.create_task(self._sweep())
            try:
                yield
            finally:
                sweeper.cancel()
                closing = [self.remove(film) for film in list(self._films.values())]
                await end_within(_CLOSE_SECONDS, asyncio.gather(*closing, return_exceptions=True))
                for client in self._clients.values():
                    await end_within(_CLOSE_SECONDS, client.close())
                self._clients.clear()

    async def _sweep(self) -> None:
        keep = self.settings.video_keep_seconds
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, keep / 4))
            for film in list(self._films.values()):
                if film.idle_seconds > keep:
                    log.info("a video is deleted: nobody has used it for %g s", keep)
                    await end_within(_CLOSE_SECONDS, self.remove(film))
                else:
                    await end_within(_CLOSE_SECONDS, film.shelve())
            self.measure()
