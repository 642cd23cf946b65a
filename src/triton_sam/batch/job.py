"""BatchJob: masks for many images, in one call."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from triton_sam.batch.executors.segmenting import check_options
from triton_sam.batch.finishing import are_there, finish
from triton_sam.batch.inputs.reading import read_item, size_of
from triton_sam.batch.inputs.sources import find_sources, pages_of
from triton_sam.batch.outputs.choosing import check_outputs, make_writers
from triton_sam.batch.progress import JobProgress
from triton_sam.batch.prompts.prompt_files import CheckedPrompts, open_prompts
from triton_sam.batch.prompts.prompt_function import PromptingExecutor, PromptsOf
from triton_sam.batch.records import Executor, Item, ItemResult, SegmentOptions, WordOptions
from triton_sam.batch.runner import OnProgress, Summary, run_job
from triton_sam.batch.state.definition import JobDefinition, PromptsFile
from triton_sam.batch.state.disk_errors import disk_stopped
from triton_sam.batch.state.filling import JobInput
from triton_sam.batch.state.lock import job_lock
from triton_sam.batch.state.opening import known_definition, open_job, results_of
from triton_sam.batch.state.results import ResultFiles
from triton_sam.batch.state.store import JobStore
from triton_sam.batch.stopping import StopRequest
from triton_sam.core.concepts.request import concept_text
from triton_sam.core.deep_pixels import Window
from triton_sam.core.image_choice import ImageChoice, picture_for_model
from triton_sam.errors import InvalidInput, TritonSamError

OnResult = Callable[[ItemResult], object]
#: Results that may wait for a reader of the job.
_MOST_UNREAD = 64
#: Seconds between two looks at whether the other thread still runs.
_LOOK = 0.1
#: Seconds for one request. Everything takes a minute on a small machine, and waits behind others there.
_TIMEOUT, _EVERYTHING_TIMEOUT = 300.0, 1000.0
_USUAL = "sam2"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs; it may be another place each time.

    Attributes:
        urls: of Triton or of the service; None for the settings' address.
        workers, scheduler: of Dask; None for threads of this process.
        patience: seconds to wait for servers that do not respond.
        timeout: seconds for one request.
    """

    urls: Sequence[str | None]
    token: str | None
    workers: int | None
    scheduler: str | None
    patience: float
    timeout: float


class BatchJob:
    """Masks for many images, in a folder that keeps the job's state: the same job goes on where it was stopped.

    :meth:`run` does all of it. ``for result in job`` does too, and gives each image's result; those of earlier runs
    come first.
    """

    # Many parameters: options that users set one by one.
    def __init__(
        self,
        inputs: str | Path | Sequence[str | Path],
        out: str | Path,
        *,
        text: str | Sequence[str] | None = None,
        score_threshold: float | None = None,
        max_instances: int | None = None,
        everything: bool | Mapping[str, Any] | None = None,
        coco: str | Path | None = None,
        csv: str | Path | None = None,
        prompts: PromptsOf | None = None,
        save: str | Sequence[str] = ("coco",),
        label_format: str | None = None,
        clean: int | None = None,
        channel: int | None = None,
        window: Window | None = None,
        model: str | None = None,
        url: str | Sequence[str] | None = None,
        token: str | None = None,
        workers: int | None = None,
        scheduler: str | None = None,
        retry_failed: bool = False,
        patience: float = 600.0,
        timeout: float | None = None,
    ) -> None:
        """
        Args:
            inputs: folders, image files, TIFF stacks, Zarr arrays, patterns, or text files of paths.
            out: folder of the results; it is made if it is not there.
            text: finds everything that it names in each image; several texts are looked for separately, and each is a
                category of the results.
            score_threshold, max_instances: of text, as in :meth:`SAM2TritonClient.segment`.
            everything: True, or options of everything mode, to find all objects of each image.
            coco: a COCO file, whose boxes are the prompts.
            csv: a CSV file with the columns ``file,x,y,label`` or ``file,x0,y0,x1,y1``.
            prompts: a function of an image's path that returns its prompts, each a box (x0, y0, x1, y1) or a dict
                ``{"points": ..., "labels": ..., "box": ...}`` in original pixels.
            save: what to write beside ``results/``: coco, geojson, labels, overlays.
            label_format: of label images: png (the default), tiff16 or tiff32.
            clean: fills holes and removes islands with fewer pixels.
            channel, window: of scientific images, as in :meth:`SAM2TritonClient.set_image`.
            model: Triton name of the segmenter, or a catalogue id; default sam2, for text one that takes it.
            url: one address or several, which share the job; default TRITON_URL.
            workers: run on so many Dask processes of this machine.
            scheduler: run on the workers of this Dask scheduler.
            retry_failed: try images again that have failed.
            patience: seconds to wait for servers that do not respond.
            timeout: seconds for one request; default 300, in everything mode 1,000.
        """
        given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
        self.folder = Path(out).expanduser().absolute()
        words = _words(text, score_threshold, max_instances)
        choice = ImageChoice(channel=channel, window=window)
        self._options = SegmentOptions(model or _USUAL, _everything(everything), clean, choice, words)
        self._finds_model = model is None and words is not None
        names = sorted({save} if isinstance(save, str) else set(save))
        self._label_format = label_format or "png"
        self._outputs = {name: {"format": self._label_format} if name == "labels" else {} for name in names}
        self._inputs = [str(Path(text)) for text in given]  # photos/ is photos
        self._coco, self._csv, self._prompts = _path(coco), _path(csv), prompts
        urls = [url] if url is None or isinstance(url, str) else list(url)
        usual = _TIMEOUT if self._options.everything is None else _EVERYTHING_TIMEOUT
        self._place = Place(urls, token, workers, scheduler, patience, usual if timeout is None else timeout)
        self._retry_failed = retry_failed
        self._stop = StopRequest()
        self.summary: Summary | None = None
        if sum(way is not None for way in (words, self._options.everything, coco, csv, prompts)) != 1:
            raise InvalidInput("say what to segment: --text, --everything, or prompts by --coco or --csv (one of them)")
        if workers is not None and scheduler is not None:
            raise InvalidInput("give either --workers or --scheduler, not both")
        if patience < 0:
            raise InvalidInput("the patience is 0 seconds or more")
        check_options(self._options)
        check_outputs(names, self._label_format)
        if label_format is not None and "labels" not in names:
            raise InvalidInput("a format of label images is given, but none are saved: add labels to what is saved")

    def run(self, on_progress: OnProgress | None = None, on_result: OnResult | None = None) -> Summary:
        """Segments what is left, and writes the outputs when all images have ended.

        Args:
            on_progress: called a few times a second.
            on_result: called with each new result before it is recorded, from several threads. If it raises, that image
                has failed. After a kill it may be called for an image again.

        Raises:
            InvalidInput: an input or an option is wrong, or the folder has another job.
            JobStopped: the job cannot go on now. Nothing is lost.
        """
        return self._run(on_progress, on_result, None)

    def stop(self) -> bool:
        """Ends a run from another thread or a signal handler: what is in flight is finished; called again, dropped.

        Returns:
            Whether this was the first call.
        """
        return self._stop.ask()

    def __iter__(self) -> Iterator[ItemResult]:
        """Runs the job; gives the results of earlier runs in order, then each new one when it is there.

        If the reader ends early, so does the job; what it has done is kept.
        """
        unread: queue.Queue[ItemResult] = queue.Queue(_MOST_UNREAD)
        failure: list[BaseException] = []
        is_read = threading.Event()
        is_read.set()

        def give(result: ItemResult) -> None:
            while is_read.is_set():
                with contextlib.suppress(queue.Full):
                    unread.put(result, timeout=_LOOK)
                    return

        def work() -> None:
            try:
                self._run(None, give, give)
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=work, name="batch-job", daemon=True)
        thread.start()
        try:
            while thread.is_alive() or not unread.empty():
                with contextlib.suppress(queue.Empty):
                    yield unread.get(timeout=_LOOK)
        finally:
            if thread.is_alive():
                is_read.clear()
                self.stop()
                thread.join()
        if failure:
            raise failure[0]

    # -- the parts -----------------------------------------------------------------------------------------------

    def _definition(self) -> JobDefinition:
        definition = known_definition(self.folder)
        known = None if definition is None else definition.prompts
        if self._finds_model:
            self._options = replace(self._options, model=_model_for_text(definition, self._place))
        prompts = None
        if self._prompts is not None:
            name = (
                f"{self._prompts.__module__}.{getattr(self._prompts, '__qualname__', type(self._prompts).__qualname__)}"
            )
            prompts = PromptsFile("function", name, 0, 0, name)
        elif self._coco is not None:
            prompts = PromptsFile.of("coco", self._coco, known)
        elif self._csv is not None:
            prompts = PromptsFile.of("csv", self._csv, known)
        return JobDefinition(self._inputs, self._options, prompts, self._outputs)

    def _input(self) -> JobInput:
        """What a stop interrupts while it is read: then nothing is set up, because half a list would be another job."""
        checked = self._stop.checked
        source = open_prompts(self._coco, self._csv)
        return JobInput(
            lambda: checked(find_sources(self._inputs, exclude=[self.folder])),
            pages_of,
            None if source is None else lambda: CheckedPrompts(source, checked),
        )

    def _run(self, on_progress: OnProgress | None, on_result: OnResult | None, on_earlier: OnResult | None) -> Summary:
        try:
            return self._locked_run(on_progress, on_result, on_earlier)
        finally:
            self._stop = StopRequest()  # another run of this job is not stopped

    def _locked_run(
        self, on_progress: OnProgress | None, on_result: OnResult | None, on_earlier: OnResult | None
    ) -> Summary:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_stopped(self.folder, error) from error
        with job_lock(self.folder):
            definition = self._definition()
            store = open_job(self.folder, definition, self._input())
            files = ResultFiles(self.folder)
            try:
                if self._retry_failed:
                    store.reset_failed()
                if on_earlier is not None:
                    for result in self._stop.checked(results_of(store, files)):
                        on_earlier(result)
                summary = self.summary = self._segment(store, files, on_progress, on_result)
                if not summary.waiting and not (store.is_finished() and are_there(self.folder, definition)):
                    if on_progress is not None:
                        on_progress(JobProgress(summary.done, summary.failed, summary.of, doing="writing the outputs"))
                    finish(store, files, definition, self._picture, self._stop.checked)
            finally:
                store.close()
        return self.summary

    def _segment(
        self, store: JobStore, files: ResultFiles, on_progress: OnProgress | None, on_result: OnResult | None
    ) -> Summary:
        """All images that wait."""
        choice = self._options.choice
        writers = make_writers(list(self._outputs), self.folder, self._label_format)
        if on_result is not None:
            writers = [*writers, _Teller(on_result)]
        return run_job(
            store,
            files,
            _executor(self._place, self._options, self._prompts),
            writers,
            on_progress,
            self._stop,
            read_image=lambda item: read_item(item, choice),
        )

    def _picture(self, item: Item) -> Image.Image:
        return picture_for_model(read_item(item, self._options.choice), ImageChoice())


class _Teller:
    """Tells a user's function of each result."""

    def __init__(self, on_result: OnResult) -> None:
        self._on_result = on_result

    def write(self, result: ItemResult, data: Callable[[], bytes]) -> None:
        try:
            self._on_result(result)
        except Exception as error:
            raise InvalidInput(f"on_result failed: {type(error).__name__}: {error}") from error


def _executor(place: Place, options: SegmentOptions, prompts: PromptsOf | None) -> Executor:
    from triton_sam.batch.executors.thread_executor import ThreadExecutor

    executor: Executor
    if place.workers is None and place.scheduler is None:
        executor = ThreadExecutor(
            place.urls,
            options,
            token=place.token,
            patience=place.patience,
            timeout=place.timeout,
            read=read_item,
            size_of=size_of,
        )
    else:
        from triton_sam.batch.executors.dask_executor import DaskExecutor

        executor = DaskExecutor(
            place.urls,
            options,
            scheduler=place.scheduler,
            workers=place.workers,
            token=place.token,
            patience=place.patience,
            timeout=place.timeout,
            read=read_item,
            size_of=size_of,
        )
    return executor if prompts is None else PromptingExecutor(executor, prompts)


def _model_for_text(known: JobDefinition | None, place: Place) -> str:
    """The model of the job that is there, or what the first of its servers that has one serves."""
    from triton_sam.client.text_models import model_for_text

    if known is not None and known.options.words is not None:
        return known.options.model
    for url in place.urls[:-1]:
        with contextlib.suppress(TritonSamError):
            return model_for_text(url, place.token)
    return model_for_text(place.urls[-1], place.token)


def _words(
    text: str | Sequence[str] | None, score_threshold: float | None, max_instances: int | None
) -> WordOptions | None:
    if text is None:
        if score_threshold is not None or max_instances is not None:
            raise InvalidInput("a score threshold and a number of instances are for text: add --text")
        return None
    texts = tuple(concept_text(one) for one in ([text] if isinstance(text, str) else text))
    twice = next((one for index, one in enumerate(texts) if one in texts[:index]), None)
    if twice is not None or not texts:
        raise InvalidInput("there is no text" if not texts else f"the text {twice!r} is given twice: give it once")
    return WordOptions(texts, score_threshold, max_instances)


def _everything(given: bool | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if given is None or given is False:
        return None
    return {} if given is True else dict(given)


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)
