"""The code of the guides to batch jobs in libraries and on clusters, and the files of deploy/batch.

Each library has an environment of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from PIL import Image

from tests.batch_data import BOXES, results_of, run_batch, write_pictures
from triton_sam.server.host import free_port
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.part("batch"), pytest.mark.timeout(1500)]
ROOT = Path(__file__).resolve().parents[2]
RAY_JOB, DASK_CLUSTER = ROOT / "deploy" / "batch" / "ray_job.py", ROOT / "deploy" / "batch" / "dask_cluster.yaml"
PICTURES = 6
INSTALL_SECONDS = 900

Environment = Callable[..., Path]

# -- pages -----------------------------------------------------------------------------------------------------------


def blocks(page: str, section: str, language: str = "python") -> list[str]:
    """The code blocks of a section, in order."""
    text = (ROOT / "docs" / "guides" / page).read_text()
    (body,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)


def job_options() -> list[str]:
    """The options of the command at the top of docs/guides/batch_libraries.md."""
    (command,) = re.findall(
        r"^triton-sam batch (.*)$", (ROOT / "docs" / "guides" / "batch_libraries.md").read_text(), re.MULTILINE
    )
    return str(command).split()


# -- environments ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Makes an environment with the light client and these packages; skips the test if they cannot be installed."""

    def make(*packages: str, extra: str = "") -> Path:
        folder = tmp_path_factory.mktemp("environment") / "venv"
        venv.create(folder, with_pip=True)
        python = folder / "bin" / "python"
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            done = subprocess.run(
                [*pip, f"{ROOT}{extra}", *packages],
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"{' '.join(packages)} was not installed from PyPI within {INSTALL_SECONDS} s")
        if done.returncode:
            reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            pytest.skip(f"{' '.join(packages)} cannot be installed from PyPI: {(reasons or ['no reason given'])[-1]}")
        return python

    return make


@pytest.fixture(scope="module")
def job(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the page: photos, boxes.json, and the results of its command."""
    folder = tmp_path_factory.mktemp("guides")
    write_pictures(folder / "photos", PICTURES)
    code, output = run_batch(
        *job_options(), home=folder / "home", cwd=folder, variables={"TRITON_URL": server.urls["HTTP"]}
    )
    assert code == 0, output
    return folder


def run_code(
    python: Path,
    code: str,
    folder: Path,
    server: RunningServer | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Runs code as a script in a folder; returns what it prints."""
    script = folder / "script.py"
    script.write_text(code)
    settings = {"TRITON_SAM_HOME": str(folder / "home"), "MPLBACKEND": "agg"} | dict(variables or {})
    if server is not None:
        settings["TRITON_URL"] = server.urls["HTTP"]
    done = subprocess.run(
        [python, script],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def annotations_of(job: Path) -> list[dict[str, Any]]:
    return list(json.loads((job / "masks" / "annotations.json").read_text())["annotations"])


# -- libraries -------------------------------------------------------------------------------------------------------


def test_supervision(environment: Environment, job: Path, server: RunningServer) -> None:
    """Also that scores and classes are those of their masks, after from_sam has sorted."""
    check = """
import json
for result in job:
    found = detections(result)
    of_area = {mask.area: mask for mask in result.masks}
    for mask, xyxy, score, number in zip(found.mask, found.xyxy, found.confidence, found.class_id):
        record = of_area[mask.sum()]
        assert (record.score, record.category_id) == (score, number)
        assert xyxy.tolist() == [*record.bbox[:2], record.bbox[0] + record.bbox[2], record.bbox[1] + record.bbox[3]]
    print(len(found))
from dataclasses import replace
assert len(detections(replace(result, masks=()))) == 0
"""
    code = "\n".join([*blocks("batch_libraries.md", "supervision"), check])
    printed = run_code(environment("supervision"), code, job, server)
    assert [int(line) for line in printed.split()] == [BOXES] * PICTURES
    for number in range(PICTURES):
        with Image.open(job / f"{number}.png") as shown:
            assert shown.mode == "RGB"


def test_pandas(environment: Environment, job: Path) -> None:
    check = "print(json.dumps(masks[['id', 'file_name', 'area', 'part']].values.tolist()))"
    code = "\n".join([*blocks("batch_libraries.md", "pandas"), check])
    printed = run_code(environment("pandas"), code, job)
    document = json.loads((job / "masks" / "annotations.json").read_text())
    images = {image["id"]: image for image in document["images"]}
    expected = []
    for found in document["annotations"]:
        image = images[found["image_id"]]
        part = found["area"] / (image["width"] * image["height"])
        expected.append([found["id"], image["file_name"], found["area"], part])
    assert sorted(json.loads(printed.splitlines()[-1])) == sorted(expected)


def test_pycocotools(environment: Environment, job: Path) -> None:
    check = """
    assert mask.sum() == annotation["area"]
print(len(coco.anns), len(coco.imgs))
"""
    (code,) = blocks("batch_libraries.md", "pycocotools")
    printed = run_code(environment("pycocotools"), code.rstrip() + check, job)
    assert printed.splitlines()[-1] == f"{PICTURES * BOXES} {PICTURES}"


def test_geopandas(environment: Environment, job: Path) -> None:
    check = """
import json
from pathlib import Path

from shapely.geometry import shape

assert frame.crs is None
assert frame.is_valid.all()
polygons = [shape(feature["geometry"]) for feature in json.loads(Path("masks/masks.geojson").read_text())["features"]]
print(json.dumps([frame["area"].tolist(), frame.geometry.area.tolist(), [polygon.area for polygon in polygons]]))
"""
    code = "\n".join([*blocks("batch_libraries.md", "geopandas"), check])
    printed = run_code(environment("geopandas"), code, job)
    pixels, by_frame, by_shapely = json.loads(printed.splitlines()[-1])
    assert sorted(pixels) == sorted(found["area"] for found in annotations_of(job) if found["area"])
    assert by_frame == by_shapely
    assert by_frame == pytest.approx(pixels), "the outlines follow the pixels' edges"


def test_tifffile_and_napari(environment: Environment, job: Path) -> None:
    labels, napari = blocks("batch_libraries.md", "tifffile and napari")
    windowless = napari.replace("napari.Viewer()", "napari.components.ViewerModel()").replace("napari.run()", "")
    assert windowless.count("ViewerModel") == 1
    check = """
assert [type(layer).__name__ for layer in viewer.layers] == ["Image", "Labels"]
assert viewer.layers[1].data.shape == viewer.layers[0].data.shape[:2] == labels.shape
"""
    python = environment("napari", "tifffile")
    home = {"XDG_CONFIG_HOME": str(job / "home"), "XDG_CACHE_HOME": str(job / "home")}
    code = "\n".join([labels, "import napari.components", windowless, check])
    printed = run_code(python, code, job, variables=home)
    assert len(printed.splitlines()) == PICTURES


def test_fiftyone(environment: Environment, job: Path) -> None:
    """Its reader of COCO files; then the page's code, where its database starts."""
    reader = """
import json

from fiftyone.utils.coco import load_coco_detection_annotations

_, classes, _, images, annotations = load_coco_detection_annotations("masks/annotations.json")
found = []
for number, objects in annotations.items():
    size = images[number]["width"], images[number]["height"]
    for one in objects:
        detection = one.to_detection(size, classes_map=classes, load_segmentation=True)
        area = 0 if detection.mask is None else int(detection.mask.sum())
        found.append([detection.label, area, detection.confidence])
print(json.dumps(found))
"""
    home = {"FIFTYONE_DO_NOT_TRACK": "1", "HOME": str(job / "home"), "FIFTYONE_DATABASE_DIR": str(job / "home" / "db")}
    python = environment("fiftyone", "pycocotools")
    printed = run_code(python, reader, job, variables=home)
    names = {1: "a", 2: "b"}
    expected = [[names[found["category_id"]], found["area"], found["score"]] for found in annotations_of(job)]
    assert sorted(json.loads(printed.splitlines()[-1])) == sorted(expected)
    start = (
        "import fiftyone as fo\ntry:\n    fo.Dataset()\nexcept Exception as error:\n    print('no database:', error)"
    )
    reason = [
        line for line in run_code(python, start, job, variables=home).splitlines() if line.startswith("no database:")
    ]
    if reason:
        pytest.skip(
            f"FiftyOne's reader of COCO files has read all masks; its database does not start here ({reason[0]})"
        )
    printed = run_code(python, "\n".join(blocks("batch_libraries.md", "FiftyOne")), job, variables=home)
    assert printed.splitlines()[-1].split()[0] == str(PICTURES * BOXES)


# -- clusters --------------------------------------------------------------------------------------------------------


def test_dask(job: Path, server: RunningServer) -> None:
    """The page's job on this machine's workers gives what a plain one does."""
    local, _ = blocks("batch_clusters.md", "Dask", "bash")
    words = local.replace("masks", "by-workers").replace("--workers 4", "--workers 2").split()
    assert words[:2] == ["triton-sam", "batch"]
    run_on_dask(words[2:], job, server)
    assert results_of(job / "by-workers") == results_of(job / "masks")


def test_dask_scheduler(job: Path, server: RunningServer) -> None:
    """The page's scheduler and workers, started by its commands on this machine."""
    _, cluster = blocks("batch_clusters.md", "Dask", "bash")
    port = free_port()
    here = {"head:8786": f"127.0.0.1:{port}", "--port 8786": f"--host 127.0.0.1 --port {port} --no-dashboard"}
    here |= {"--nworkers 4": "--nworkers 2 --no-dashboard", "/data/photos": "photos", "masks": "by-cluster"}
    here |= {"http://gpu1:8080": server.urls["HTTP"], "http://gpu2:8080": server.urls["gRPC"], ' --token "$TOKEN"': ""}
    for written, meant in here.items():
        assert written in cluster
        cluster = cluster.replace(written, meant)
    start, join, batch = cluster.replace("\\\n", "").splitlines()
    with contextlib.ExitStack() as running:
        for command in (start, join):
            words = [sys.executable, "-m", *command.partition("#")[0].split()]
            process = running.enter_context(subprocess.Popen(words, cwd=job))
            running.callback(process.terminate)
        run_on_dask(batch.split()[2:], job, server)
    assert results_of(job / "by-cluster") == results_of(job / "masks")


def run_on_dask(words: list[str], job: Path, server: RunningServer) -> None:
    variables = {"TRITON_URL": server.urls["HTTP"]}
    code, output = run_batch(*words, home=job / "home", cwd=job, variables=variables, seconds=200)
    assert code == 0, output


def test_slurm(environment: Environment, job: Path) -> None:
    """The job script; there is no SLURM, so nothing is submitted."""
    (code,) = blocks("batch_clusters.md", "SLURM")
    compile(code, "submit", "exec")
    workers, submit, _ = code.partition("cluster.scale(")
    assert submit
    script = f"{workers}print(cluster.job_script())\ncluster.close()\n"
    lines = run_code(environment("dask-jobqueue", extra="[batch]"), script, job).splitlines()
    asked = {"-p cpu", "-n 1", "--cpus-per-task=4", "--mem=15G", "-t 08:00:00"}
    assert asked <= {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")}
    assert "export OMP_NUM_THREADS=1" in lines
    (worker,) = [line for line in lines if "dask_worker tcp://" in line]
    assert "--nthreads 1 " in worker
    assert "--nworkers 4 " in worker


def test_kubernetes(environment: Environment) -> None:
    """The resource against the operator's own schema, in which no unknown field may stand."""
    text = DASK_CLUSTER.read_text()
    cluster = yaml.safe_load(text)
    python = environment("dask-kubernetes")
    (definition,) = python.parents[1].glob("lib/python*/site-packages/dask_kubernetes/**/crds/daskcluster.yaml")
    resource = yaml.safe_load(definition.read_text())["spec"]
    assert cluster["apiVersion"] == f"{resource['group']}/{resource['versions'][0]['name']}"
    assert cluster["kind"] == resource["names"]["kind"]
    schema = strict(resource["versions"][0]["schema"]["openAPIV3Schema"])
    schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {}}  # Kubernetes adds these
    jsonschema.validate(cluster, schema)
    with pytest.raises(jsonschema.ValidationError, match="replcas"):
        jsonschema.validate(yaml.safe_load(text.replace("replicas", "replcas")), schema)
    apply, command = blocks("batch_clusters.md", "Kubernetes", "bash")
    assert str(DASK_CLUSTER.relative_to(ROOT)) in apply
    (port,) = [port["port"] for port in cluster["spec"]["scheduler"]["service"]["ports"] if port["name"] == "tcp-comm"]
    assert f"tcp://{cluster['metadata']['name']}-scheduler:{port}" in command, "as the operator names the service"


def strict(schema: Any) -> Any:
    """A schema that refuses fields it does not name, as ``kubectl apply`` does."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(part) for name, part in schema.items()}
    if isinstance(made.get("properties"), dict) and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


def test_ray(environment: Environment, job: Path, server: RunningServer) -> None:
    """Each mask as in the batch job, and a damaged file with its reason, in one local Ray."""
    (page,) = blocks("batch_clusters.md", "Ray Data", "bash")
    install, command = page.splitlines()
    python, script, *words = command.replace("http://localhost:8080", server.urls["HTTP"]).split()
    assert (install, python, ROOT / script) == ("pip install 'ray[data]'", "python", RAY_JOB)
    assert server.urls["HTTP"] in words
    folder = job / "ray"
    folder.mkdir()
    shutil.copytree(job / "photos", folder / "photos")
    document = json.loads((job / "boxes.json").read_text())
    damaged = document["images"][0]["file_name"]
    (folder / "photos" / damaged).write_bytes(b"not an image")
    shutil.copy(job / "boxes.json", folder)
    check = f"""
    sys.argv[1:] = {words!r}
    main(*sys.argv[1:])
    import pyarrow.parquet
    print(json.dumps(pyarrow.parquet.read_table("masks-parquet").to_pylist()))
"""
    code = RAY_JOB.read_text().replace("\n    main(*sys.argv[1:])\n", check)
    assert check in code
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(job.parent), "RAY_DEDUP_LOGS": "0"}
    printed = run_code(environment("ray[data]"), code, folder, variables=quiet)
    rows = json.loads(printed.splitlines()[-1])
    found: dict[str, list[str]] = {}
    for row in rows:
        name = (folder / row["path"]).relative_to(folder / "photos").as_posix()
        if row["failure"]:
            assert name == damaged
            assert not row["rle"]
        else:
            found.setdefault(name, []).append(json.loads(row["rle"])["counts"])
    expected = {name: sorted(mask[3] for mask in masks) for name, masks in results_of(job / "masks").items()}
    del expected[damaged]
    assert {name: sorted(masks) for name, masks in found.items()} == expected
    assert len(rows) == BOXES * (PICTURES - 1) + 1
