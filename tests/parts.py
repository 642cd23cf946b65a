"""The parts of the long suite, which only ``make test-all`` runs; each test is marked ``@pytest.mark.part(NAME)``."""

#: Name -> what it tests, from the shortest part to the longest.
PARTS = {
    "masks": "masks against the reference for every size, photograph and prompt, and the fast encoder's figures",
    "exports": "every export against torch on every photograph, in fp32, fp16 and 8 bits, and foreign tools' profiles",
    "vlm": "vision-language models: every family, shape and precision",
    "page": "the page's pictures, memory, devices and accessibility in full",
    "docs": "the site in Chromium, and the documented commands with the published weights in an empty home",
    "deploy": "Helm, promtool, HAProxy, nginx, containers' files, sites without internet, the audit",
    "bench": "that every bench runs, and GPU kernels in an interpreter",
    "clones": "a fresh clone on every Python, the light client with numpy 1 and 2, the notebooks",
    "batch": "batch jobs: kills, a full disk, Dask, real weights, environments of other libraries",
    "everything": "everything mode with real weights against the published loop: photographs, grids, crops, options",
    "mutations": "ten thousand mutated requests, and property tests with many examples",
    "devices": "several devices acted out on CPUs, and four Triton processes: kills, hangs, hovers, a newer version",
    "video": "objects through videos: kills at random frames of 200, two servers, ten thousand frames, many sessions",
    "faults": "kills, damage, drains and hostile input in every combination and in full length",
    "faults-processes": "kills, hangs, drains and hostile input with three Triton processes and two devices, acted out",
    "overload": "ten times capacity, crowds at HAProxy, two servers behind it",
    "full-size": "every model exported at its full size with random weights: hours, and up to 20 GiB of memory",
    "soak": "mixed load with kills for twenty minutes",
}

#: Parts that run tests of `make test` and of other parts (``@pytest.mark.also_part(NAME)``) with another shape of the
#: server -> its variables.
SHAPES = {"faults-processes": {"TRITON_SAM_PROCESSES": "3", "TRITON_SAM_DEVICES": "cpu,cpu"}}
