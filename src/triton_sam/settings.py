"""The settings; each can be set as TRITON_SAM_<NAME> in the environment."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_cache_path
from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from triton_sam.errors import SetupError

MIB = 1024 * 1024
#: Characters of an API token.
MIN_TOKEN = 16


def check_token(token: str) -> None:
    """Raises ValueError, which does not quote the token, if it is not a usable API token."""
    if not (token.isascii() and token.isprintable()):
        raise ValueError("a token must consist of printable ASCII characters, because it is sent in a header")
    if len(token) < MIN_TOKEN:
        raise ValueError(f"a token must have at least {MIN_TOKEN} characters: `openssl rand -hex 24` creates one")


class VideoServiceSettings(BaseSettings):
    """Limits of videos that are sent to the service."""

    video_upload_bytes: int = Field(default=1024 * MIB, gt=0, description="largest video file sent to the service")
    video_frames: int = Field(default=20_000, gt=0, description="maximum number of frames of a video in the service")
    video_frame_pixels: int = Field(
        default=40_000_000, gt=0, description="largest frame of a video in the service, width x height in pixels"
    )
    video_decode_seconds: float = Field(
        default=900.0, gt=0, description="how long the service reads or exports one video"
    )
    video_decode_bytes: int = Field(
        default=2048 * MIB, gt=0, description="memory of the process that reads or exports a video for the service"
    )
    video_decoders: int = Field(default=2, gt=0, description="such processes at a time, and one more for exports")
    video_clip_bytes: int = Field(
        default=2048 * MIB, gt=0, description="disk space of one video in the service: frames and masks"
    )
    video_disk_bytes: int = Field(
        default=8192 * MIB, gt=0, description="disk space of all videos in the service; half of it for one caller"
    )
    video_open: int = Field(default=64, gt=0, description="maximum number of videos in the service")
    video_open_per_caller: int = Field(
        default=32, gt=0, description="the same for one token, or for one address without a token"
    )
    video_keep_seconds: float = Field(
        default=1800.0, gt=0, description="the service deletes a video that nobody uses for so long"
    )


def _token_text(value: Any) -> Any:
    """A token without blanks around it; None if it is empty."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str):
        return value
    text = text.strip()  # the line end of a file, which no header can contain
    if value and not text:
        raise ValueError("the token is blank: set one, or leave the variable empty for none")
    if text:
        check_token(text)
    return text or None


class Settings(VideoServiceSettings):
    """Settings of a machine. Limits protect the server from one request; queues from many."""

    # An empty variable is none: compose files cannot unset one.
    model_config = SettingsConfigDict(
        env_prefix="TRITON_SAM_", env_ignore_empty=True, extra="ignore", populate_by_name=True
    )

    home: Path = Field(
        default_factory=lambda: user_cache_path("triton-sam"),
        description="folder of weights and model repositories",
    )
    tritonserver: Path | None = Field(
        default=None,
        description="folder of a Triton to run instead of the embedded one: /opt/tritonserver in NVIDIA's container",
    )
    url: str = Field(
        default="localhost:8000",
        validation_alias=AliasChoices("TRITON_SAM_URL", "TRITON_URL"),
        description="server of the clients and of `triton-sam segment` (TRITON_URL works too)",
    )

    max_image_bytes: int = Field(default=64 * MIB, gt=0, description="largest image file that is accepted")
    max_image_pixels: int = Field(default=100_000_000, gt=0, description="largest image, width x height in pixels")
    max_points: int = Field(default=256, gt=0, description="maximum number of points per object")
    max_objects: int = Field(default=64, gt=0, description="maximum number of objects per request")
    max_concepts: int = Field(default=16, gt=0, description="maximum number of texts or concepts per request")
    max_instances: int = Field(default=200, gt=0, description="maximum number of instances of one concept in an answer")
    max_prompt_bytes: int = Field(default=32 * MIB, gt=0, description="maximum length of prompt_json")

    max_answer_pixels: int = Field(
        default=500_000_000, gt=0, description="maximum number of masks of one request times pixels of the image"
    )

    video_sessions: int = Field(default=256, gt=0, description="maximum number of open videos of a device")
    video_idle_seconds: float = Field(default=300.0, gt=0, description="a video that nobody uses for so long is closed")
    video_bytes: int = Field(
        default=4096 * MIB,
        gt=0,
        description="memory of all open videos of a device; on a GPU at most a third of what is free",
    )
    video_session_bytes: int = Field(default=512 * MIB, gt=0, description="memory of one open video")
    video_history: int = Field(
        default=32,
        ge=0,
        description="frames around the newest one of a video whose memories are kept for corrections of earlier frames",
    )
    video_conditioning: int = Field(
        default=16, gt=0, description="prompted frames kept of an object; an answer says which older ones are dropped"
    )
    video_objects: int = Field(default=64, gt=0, description="maximum number of objects of one video")
    video_gap_seconds: float = Field(default=10.0, gt=0, description="how long a step waits for the steps before it")

    cache_bytes: int = Field(
        default=1024 * MIB, gt=0, description="size of the embedding cache of each segmenter process"
    )
    encode_queue: int = Field(default=32, gt=0, description="maximum number of images that wait for the encoder")
    click_queue: int = Field(default=512, gt=0, description="maximum number of clicks that wait for the decoder")
    queue_seconds: float = Field(default=90.0, gt=0, description="longest time in a queue before a request is refused")
    background_queue_seconds: float = Field(
        default=900.0, gt=0, description="the same for background requests, whose clients are patient"
    )
    click_batch: int = Field(
        default=8, gt=0, description="maximum number of prompts decoded in one run of an ONNX graph"
    )
    encode_batch: int = Field(default=8, gt=0, le=8, description="maximum number of images encoded in one run on a GPU")
    encode_window_ms: float = Field(
        default=2.0, ge=0, description="how long the encoder waits for images that are being decoded, to batch them"
    )
    ready_seconds: float = Field(
        default=900.0,
        gt=0,
        description="how long a server may take to start; weights may be read from a slow disk",
    )
    engine: Literal["auto", "torch", "onnx"] = Field(
        default="auto",
        description="runtime of the segmenters; auto: torch if its weights and a GPU are available, else ONNX Runtime",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="device of the segmenters")
    devices: str = Field(
        default="",
        description="devices of each segmenter, separated by commas: numbers of GPUs, or cpu; each has a worker "
        "process; empty: all GPUs that are visible, or else the CPU",
    )
    processes: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Triton processes of each segmenter, which read requests and write masks; "
        "0: 1 for a model on one device, else by the number of cores",
    )
    torch_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="precision of the torch encoder; auto: half precision on a GPU, by model, else float32",
    )
    torch_compile: Literal["auto", "off", "default", "max-autotune"] = Field(
        default="auto",
        description="mode of torch.compile, which runs beside the server while it serves uncompiled; auto: default on "
        "a GPU, off on a CPU; max-autotune searches for the best kernels for many minutes at the first start",
    )
    gpu_jpeg: bool = Field(
        default=True,
        description="decode JPEGs on the GPU if it can; off: with Pillow, slower, and pixel for pixel as on a CPU",
    )
    torch_graphs: bool = Field(default=True, description="run the torch engine as CUDA graphs")
    onnx_tensorrt: bool = Field(
        default=False, description="run ONNX graphs on a GPU with TensorRT, whose engines take minutes to build"
    )
    fast_encoder: bool | None = Field(
        default=None,
        description="set up and serve ready-made models with an encoder partly in 8 bits, on CPUs with VNNI, AMX or "
        "ARM's dot products; about 2 % of clicks get another mask; unset: only if `setup --fast` wrote it",
    )
    cpu_encoder: bool = Field(
        default=True,
        description="set up and serve SAM 2 models with an encoder optimised for CPUs; masks are the same",
    )
    fast_decoder: bool = Field(
        default=True, description="set up and serve models with a decoder optimised for CPUs; masks are the same"
    )
    threads: int = Field(default=0, ge=0, description="threads of one graph; 0: one per core")

    vlm_device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="device of vision-language models; auto: a GPU if there is one"
    )
    vlm_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="precision of vision-language models; auto: bfloat16 on a GPU, float32 on a CPU if it fits",
    )
    vlm_graphs: bool = Field(
        default=True, description="run decode steps as CUDA graphs, if the model and the GPU allow it"
    )
    vlm_batch: int = Field(default=8, gt=0, description="maximum number of questions in one batch")
    vlm_lanes: int = Field(
        default=2, gt=0, description="batches in parallel, so that a short answer does not wait for a long one"
    )
    vlm_gather_ms: float = Field(default=20.0, ge=0, description="how long a question waits for others to batch with")
    vlm_queue: int = Field(default=128, gt=0, description="maximum number of questions that wait for a model")
    vlm_max_prompt_bytes: int = Field(default=32 * 1024, gt=0, description="maximum length of a conversation")
    vlm_max_new_tokens: int = Field(default=2048, gt=0, description="maximum number of tokens of one answer")
    vlm_default_new_tokens: int = Field(
        default=256, gt=0, description="maximum number of tokens of an answer if the request names none"
    )
    vlm_wait_seconds: float = Field(
        default=100.0, ge=0, description="how long a question waits for its model to load, or in the queue"
    )
    vlm_seconds: float = Field(default=600.0, gt=0, description="timeout of one answer through the service")
    vlm_idle_seconds: float = Field(default=0.0, ge=0, description="unload a model that was idle for so long; 0: never")
    vlm_memory_bytes: int = Field(
        default=0, ge=0, description="memory of all loaded models together; 0: all that is free"
    )
    vlm_when_full: Literal["evict", "refuse"] = Field(
        default="evict",
        description="if a model does not fit: unload the least recently used ones, or refuse the request",
    )
    remote_images: bool = Field(
        default=False, description="let chat requests name images by https URL; private addresses are always refused"
    )

    token: SecretStr | None = Field(
        default=None,
        description="token of at least 16 characters that the service requires as `Authorization: Bearer`, and that "
        "clients send to it; unset: none",
    )
    tokens_file: Path | None = Field(
        default=None,
        description="file of further tokens with names and rate limits: lines `name token [per minute [burst]]`; read "
        "again when it changes",
    )
    rate: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="requests and hover messages per minute for each address without a token; 0: no limit",
    )
    rate_burst: int = Field(
        default=0, ge=0, description="how many of them may come at once; 0: the rate of ten seconds, at least one"
    )
    tls_certificate: Path | None = Field(
        default=None, description="PEM file with the service's certificate chain; turns on https"
    )
    tls_key: Path | None = Field(default=None, description="PEM file with the certificate's key, without a password")
    log_format: Literal["text", "json"] = Field(
        default="text", description="log format of the service and of the models"
    )
    log_requests: Literal["auto", "on", "off"] = Field(
        default="auto", description="log each request to the service; auto: if log_format is json"
    )
    tracing: bool = Field(
        default=False,
        description="send OpenTelemetry traces over OTLP/HTTP; also on if OTEL_EXPORTER_OTLP_ENDPOINT is set",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="origins of web pages that may use the service, `https://host`, separated by commas; `*` for all",
    )
    max_body_bytes: int = Field(default=96 * MIB, gt=0, description="largest body of a request to the service")
    service_processes: int = Field(
        default=1,
        ge=0,
        le=64,
        description="processes of the service; 0: one for every 4 cores, at least 1 and at most 4",
    )
    service_requests: int = Field(
        default=256, gt=0, description="requests in flight in the service; at most half of them questions"
    )
    service_connections: int = Field(
        default=2048, gt=0, description="connections to the service; at most half of the limit on open files"
    )
    service_sockets: int = Field(default=256, gt=0, description="maximum number of open hover sockets")
    service_seconds: float = Field(default=120.0, gt=0, description="timeout of one request to the service")
    service_body_bytes: int = Field(
        default=1024 * MIB,
        gt=0,
        description="bytes of all request bodies in memory together; small bodies do not count",
    )
    body_seconds: float = Field(default=30.0, gt=0, description="longest pause while a request's body arrives")

    @field_validator("devices")
    @classmethod
    def _check_devices(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",") if name.strip()]
        if len({name == "cpu" for name in names}) > 1:
            raise ValueError("devices are GPUs or the CPU, not both")
        return ",".join(names)

    @field_validator("token", mode="before")
    @classmethod
    def _checked_token(cls, value: Any) -> Any:
        return _token_text(value)

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _split_origins(cls, value: Any) -> Any:
        listed = value.split(",") if isinstance(value, str) else value
        # Browsers send origins in lower case, and they are compared exactly.
        return tuple(str(origin).strip().rstrip("/").lower() for origin in listed if str(origin).strip())

    @property
    def repository(self) -> Path:
        """The model repository that ``setup`` writes and ``serve`` reads by default."""
        return self.home / "model_repository"


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process, read once; SetupError names a variable with an invalid value."""
    try:
        return Settings()
    except ValidationError as error:
        wrong = error.errors()[0]
        name = str(wrong["loc"][0]).upper()
        name = name if name.startswith("TRITON_") else f"TRITON_SAM_{name}"
        value = (
            "set to this value" if name.endswith("_TOKEN") else repr(wrong["input"])
        )  # keep the secret out of the message
        raise SetupError(f"{name} cannot be {value}: {wrong['msg'].removeprefix('Value error, ')}") from None
