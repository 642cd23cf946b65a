"""One settings class; every value can be set as TRITON_SAM_<NAME> in the environment."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_cache_path
from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from triton_sam.errors import SetupError

MIB = 1024 * 1024


class Settings(BaseSettings):
    """What may differ between machines. Limits protect the server from one request; queues from many."""

    model_config = SettingsConfigDict(env_prefix="TRITON_SAM_", extra="ignore", populate_by_name=True)

    home: Path = Field(
        default_factory=lambda: user_cache_path("triton-sam"),
        description="where weights and repositories live",
    )
    tritonserver: Path | None = Field(
        default=None,
        description="folder of a Triton to run in place of the embedded one: /opt/tritonserver in NVIDIA's container",
    )
    url: str = Field(
        default="localhost:8000",
        validation_alias=AliasChoices("TRITON_SAM_URL", "TRITON_URL"),
        description="the server that clients and `triton-sam segment` talk to (TRITON_URL works too)",
    )

    max_image_bytes: int = Field(default=64 * MIB, gt=0, description="largest encoded image that is accepted")
    max_image_pixels: int = Field(default=100_000_000, gt=0, description="largest image, width x height")
    max_points: int = Field(default=256, gt=0, description="points of one object")
    max_objects: int = Field(default=64, gt=0, description="objects of one request")
    max_prompt_bytes: int = Field(default=32 * MIB, gt=0, description="length of prompt_json")

    max_answer_pixels: int = Field(
        default=500_000_000, gt=0, description="masks of one request times pixels of the image"
    )

    cache_bytes: int = Field(default=1024 * MIB, gt=0, description="embeddings kept per segmenter process")
    encode_queue: int = Field(default=32, gt=0, description="images waiting for the encoder")
    click_queue: int = Field(default=512, gt=0, description="clicks waiting for the decoder")
    queue_seconds: float = Field(default=90.0, gt=0, description="longest wait before a request is refused after all")
    click_batch: int = Field(default=8, gt=0, description="prompts decoded in one run of an ONNX graph")
    encode_batch: int = Field(default=8, gt=0, le=8, description="images encoded in one run on a GPU")
    encode_window_ms: float = Field(
        default=2.0, ge=0, description="how long an encode waits for other images that are being read at that moment"
    )
    ready_seconds: float = Field(
        default=900.0,
        gt=0,
        description="how long a server may take to start: torch compiles for minutes, once",
    )
    engine: Literal["auto", "torch", "onnx"] = Field(
        default="auto", description="what runs the networks; auto: torch where its weights and a GPU are there"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where the segmenters run")
    torch_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="numbers of torch's encoder; auto: on a GPU one of the halves, by model, else float32",
    )
    torch_compile: Literal["auto", "off", "default", "max-autotune"] = Field(
        default="auto",
        description="how torch compiles; auto: default on a GPU, off on a CPU; max-autotune tries kernels for many "
        "minutes at the first load",
    )
    gpu_jpeg: bool = Field(
        default=True,
        description="JPEGs decoded by the GPU where it can; off: by Pillow, slower, and pixel for pixel as on a CPU",
    )
    torch_graphs: bool = Field(default=True, description="the torch engine's steps as CUDA graphs")
    onnx_tensorrt: bool = Field(
        default=False, description="ONNX graphs on a GPU through TensorRT, whose engines take minutes to build"
    )
    fast_encoder: bool | None = Field(
        default=None,
        description="the encoder partly in 8 bits of ready-made models, on CPUs with VNNI, AMX or ARM's dot products: "
        "set it up and serve it, though about 2 % of clicks get another mask; unset: where `setup --fast` wrote it",
    )
    cpu_encoder: bool = Field(
        default=True,
        description="set up and serve ready-made models with an encoder rewritten for CPUs; masks are the same",
    )
    fast_decoder: bool = Field(
        default=True, description="set up and serve models with a decoder rewritten for CPUs; masks are the same"
    )
    threads: int = Field(default=0, ge=0, description="threads of one graph; 0 means every core")

    vlm_device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="where vision-language models run; auto: a GPU where there is one"
    )
    vlm_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="their numbers; auto: bfloat16 on a GPU, float32 on a CPU where that fits"
    )
    vlm_graphs: bool = Field(
        default=True, description="decode steps as CUDA graphs, where the model and the GPU allow it"
    )
    vlm_batch: int = Field(default=8, gt=0, description="questions that are answered in one batch")
    vlm_lanes: int = Field(
        default=2, gt=0, description="batches under way at a time, so that a short answer need not wait for a long one"
    )
    vlm_gather_ms: float = Field(default=20.0, ge=0, description="how long a question waits for others to its batch")
    vlm_queue: int = Field(default=128, gt=0, description="questions waiting for a model")
    vlm_max_prompt_bytes: int = Field(default=32 * 1024, gt=0, description="length of a question and what led to it")
    vlm_max_new_tokens: int = Field(default=2048, gt=0, description="most tokens that one answer may have")
    vlm_default_new_tokens: int = Field(default=256, gt=0, description="tokens of an answer where nothing is said")
    vlm_wait_seconds: float = Field(
        default=100.0, ge=0, description="how long a question waits for its model to load, or for its turn"
    )
    vlm_seconds: float = Field(default=600.0, gt=0, description="longest time for one answer through the service")
    vlm_idle_seconds: float = Field(
        default=0.0, ge=0, description="a model that nobody has asked for so long is unloaded; 0: never"
    )
    vlm_memory_bytes: int = Field(
        default=0, ge=0, description="memory that loaded models may take together; 0: what the machine has free"
    )
    vlm_when_full: Literal["evict", "refuse"] = Field(
        default="evict", description="where a model does not fit: unload those not used the longest, or say so"
    )
    remote_images: bool = Field(
        default=False, description="whether chat requests may name images by https address; never private ones"
    )

    token: SecretStr | None = Field(
        default=None, description="what requests to the service must carry as `Authorization: Bearer`; unset: nothing"
    )
    tokens_file: Path | None = Field(
        default=None,
        description="a file of further tokens, each with a name and a rate: lines `name token [per minute [burst]]`; "
        "read again when it changes",
    )
    rate: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="requests and hover messages a minute for each address that sends no token; 0: any number",
    )
    rate_burst: int = Field(
        default=0, ge=0, description="how many of them may come at once; 0: those of ten seconds, at least one"
    )
    tls_certificate: Path | None = Field(
        default=None, description="PEM file with the service's certificate and those that vouch for it: https then"
    )
    tls_key: Path | None = Field(default=None, description="PEM file with the certificate's key, without a password")
    log_format: Literal["text", "json"] = Field(
        default="text", description="lines of the log, of the service and of the models: for people or for machines"
    )
    log_requests: Literal["auto", "on", "off"] = Field(
        default="auto", description="a line for each request to the service; auto: where log_format is json"
    )
    tracing: bool = Field(
        default=False,
        description="send OpenTelemetry traces over OTLP/HTTP; also where OTEL_EXPORTER_OTLP_ENDPOINT is set",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="web pages that may use the service, `https://host` with commas between; `*` for all"
    )
    max_body_bytes: int = Field(default=96 * MIB, gt=0, description="largest body of a request to the service")
    service_requests: int = Field(
        default=256, gt=0, description="requests that the service works on at a time; at most half of them questions"
    )
    service_connections: int = Field(
        default=2048, gt=0, description="connections to the service at a time; at most half of the open files allowed"
    )
    service_sockets: int = Field(default=256, gt=0, description="hover sockets that are open at a time")
    service_seconds: float = Field(default=120.0, gt=0, description="longest time for one request to the service")
    service_body_bytes: int = Field(
        default=1024 * MIB, gt=0, description="bodies that the service holds at a time, in bytes; small ones are free"
    )
    body_seconds: float = Field(default=30.0, gt=0, description="longest pause between two parts of a request's body")

    @field_validator("token", mode="before")
    @classmethod
    def _checked_token(cls, value: Any) -> Any:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if not isinstance(text, str):
            return value
        text = text.strip()  # a file's line end came with it; no header can carry it
        if value and not text:
            raise ValueError("a token has more than blanks: write one, or leave the variable empty for none")
        if not (text.isascii() and text.isprintable()):
            raise ValueError("a token has printable ASCII characters only, because a header carries it")
        return text or None

    @field_validator("tokens_file", "tls_certificate", "tls_key", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value  # compose files can only set a variable to nothing

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _split_origins(cls, value: Any) -> Any:
        listed = value.split(",") if isinstance(value, str) else value
        # A browser sends its origin in lower case, and it is compared letter by letter.
        return tuple(str(origin).strip().rstrip("/").lower() for origin in listed if str(origin).strip())

    @property
    def repository(self) -> Path:
        """The model repository that ``setup`` writes and ``serve`` reads by default."""
        return self.home / "model_repository"


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process, read once; SetupError that names a variable with a wrong value."""
    try:
        return Settings()
    except ValidationError as error:
        wrong = error.errors()[0]
        name = str(wrong["loc"][0]).upper()
        name = name if name.startswith("TRITON_") else f"TRITON_SAM_{name}"
        value = "what it is" if name.endswith("_TOKEN") else repr(wrong["input"])  # a secret stays one
        raise SetupError(f"{name} cannot be {value}: {wrong['msg'].removeprefix('Value error, ')}") from None
