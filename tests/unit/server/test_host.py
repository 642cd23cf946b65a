from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from triton_sam.errors import ServerError, SetupError
from triton_sam.server import host
from triton_sam.server.host import TritonFiles

DiskUsage = namedtuple("DiskUsage", "total used free")
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
STUB = "triton_python_backend_stub"


# ports


def test_a_taken_port_is_named_with_its_option() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError) as caught:
            host.check_port("127.0.0.1", port, "grpc")
    assert str(port) in str(caught.value)
    assert "--grpc-port" in str(caught.value)


def test_a_free_port_can_be_used() -> None:
    port = host.free_port()
    assert 1024 <= port <= 65535
    host.check_port("127.0.0.1", port, "http")
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", port))


def test_checking_a_port_does_not_take_it() -> None:
    port = host.free_port()
    host.check_port("localhost", port, "http")
    host.check_port("localhost", port, "http")


@pytest.mark.parametrize("port", [-1, 65536, 70_000])
def test_a_number_that_is_no_port(port: int) -> None:
    with pytest.raises(ServerError, match=str(port)):
        host.check_port("127.0.0.1", port, "http")


def test_a_host_that_is_not_this_machine() -> None:
    with pytest.raises(ServerError, match=r"192\.0\.2\.1"):  # an address for documentation, RFC 5737
        host.check_port("192.0.2.1", host.free_port(), "http")


# the environment


@pytest.mark.parametrize("version", ["2.0.0", "2.3.1", "10.0"])
def test_numpy_2_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(SetupError) as caught:
        host.check_numpy()
    assert f"numpy {version}" in str(caught.value)
    assert "pip install 'numpy<2'" in str(caught.value)


def test_numpy_1_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.26.4")
    assert host.check_numpy() == "1.26.4"


def test_no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(SetupError, match="numpy is not installed"):
        host.check_numpy()


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_get_an_alternative(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    for step in (host.check_platform, host.find_triton):
        with pytest.raises(SetupError, match=r"Linux.*TRITON_URL"):
            step()


def test_linux_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    host.check_platform()


@pytest.mark.parametrize(("module", "package"), [("onnxruntime", "onnxruntime"), ("cv2", "opencv-python-headless")])
def test_a_missing_package_of_the_backend(module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else object())
    with pytest.raises(SetupError, match=rf"{package} is not installed.*\[server\]"):
        host.check_runtime()


def test_libpython_is_found_beside_the_running_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib" / f"libpython{VERSION}.so.1.0"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    assert host.find_libpython() == library


def test_libpython_is_found_where_python_was_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / f"libpython{VERSION}.so.1.0"
    library.touch()
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: str(tmp_path) if name == "LIBDIR" else None)
    assert host.find_libpython() == library


def test_a_missing_libpython_names_the_package() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "exists", lambda _: False)
        with pytest.raises(SetupError) as caught:
            host.find_libpython()
    assert f"libpython{VERSION}.so.1.0 is missing" in str(caught.value)
    assert "--enable-shared" in str(caught.value)


# the server's files


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An imitation of the installed nvidia-pytriton."""
    root = tmp_path / "pytriton" / "tritonserver"
    for file in ("bin/tritonserver", f"python_backend_stubs/{VERSION}/{STUB}"):
        (root / file).parent.mkdir(parents=True)
        (root / file).write_bytes(b"program")
    (root / "backends" / "python").mkdir(parents=True)
    spec = importlib.util.spec_from_file_location("pytriton", root.parent / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    monkeypatch.setattr(sys, "platform", "linux")
    return root


def test_find_triton(wheel: Path) -> None:
    assert host.find_triton() == TritonFiles(
        wheel / "bin" / "tritonserver",
        wheel / "backends" / "python",
        wheel / "python_backend_stubs" / VERSION / STUB,
    )


def test_triton_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"pip install .*\[server\]"):
        host.find_triton()


@pytest.mark.parametrize("part", ["bin", "backends"])
def test_an_incomplete_wheel(part: str, wheel: Path) -> None:
    shutil.rmtree(wheel / part)
    with pytest.raises(SetupError, match=r"incomplete.*--force-reinstall"):
        host.find_triton()


def test_a_python_without_a_stub(wheel: Path) -> None:
    shutil.rmtree(wheel / "python_backend_stubs" / VERSION)
    with pytest.raises(SetupError, match=f"no backend for Python {VERSION}"):
        host.find_triton()


@pytest.mark.parametrize("before", [None, b"the stub of another Python"])
def test_install_stub(before: bytes | None, wheel: Path) -> None:
    files = host.find_triton()
    installed = files.python_backend / STUB
    if before is not None:
        installed.write_bytes(before)
    files.binary.chmod(0o644)
    host.install_stub(files)
    assert installed.read_bytes() == b"program"
    assert os.access(installed, os.X_OK)
    assert os.access(files.binary, os.X_OK)
    assert [path.name for path in files.python_backend.iterdir()] == [STUB]


def test_a_right_stub_is_not_written_again(wheel: Path) -> None:
    files = host.find_triton()
    host.install_stub(files)
    first = (files.python_backend / STUB).stat()
    host.install_stub(files)
    second = (files.python_backend / STUB).stat()
    assert (first.st_ino, first.st_mtime_ns) == (second.st_ino, second.st_mtime_ns)


def test_a_stub_that_cannot_be_installed(wheel: Path) -> None:
    files = host.find_triton()
    files.python_backend.rmdir()
    with pytest.raises(SetupError, match="virtual environment that you can write to"):
        host.install_stub(files)


@pytest.fixture
def other_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An imitation of NVIDIA's container's folder, with a stub of this Python."""
    root = tmp_path / "tritonserver"
    for file, content in (("bin/tritonserver", "program"), (f"backends/python/{STUB}", f"libpython{VERSION}.so.1.0")):
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text(content)
    monkeypatch.setattr(sys, "platform", "linux")
    return root


def test_another_triton_is_used_as_it_is(other_triton: Path) -> None:
    files = host.find_triton(other_triton)
    assert files.binary == other_triton / "bin" / "tritonserver"
    before = files.stub_source.stat()
    host.install_stub(files)
    after = files.stub_source.stat()
    assert (before.st_mode, before.st_mtime_ns, before.st_ino) == (after.st_mode, after.st_mtime_ns, after.st_ino)


@pytest.mark.parametrize("part", ["bin/tritonserver", f"backends/python/{STUB}"])
def test_a_folder_without_a_whole_triton(part: str, other_triton: Path) -> None:
    (other_triton / part).unlink()
    with pytest.raises(SetupError, match=f"{part} is missing: TRITON_SAM_TRITONSERVER"):
        host.find_triton(other_triton)


def test_a_triton_for_another_python(other_triton: Path) -> None:
    (other_triton / "backends" / "python" / STUB).write_bytes(b"\0libpython3.9.so.1.0\0")
    with pytest.raises(SetupError, match=f"runs models with Python 3.9 and this is {VERSION}: install triton-sam with"):
        host.find_triton(other_triton)


@pytest.mark.parametrize(
    ("says", "flags"),
    [("  --http-max-input-size <integer>", ["--http-max-input-size=1000"]), ("  --http-port <integer>", [])],
)
def test_only_flags_that_a_triton_knows_are_passed(says: str, flags: list[str], tmp_path: Path) -> None:
    binary = tmp_path / "tritonserver"
    binary.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
    binary.chmod(0o755)
    assert host.known_flags(binary, ["--http-max-input-size=1000", "--trace-config=count=0"]) == flags


def test_a_triton_that_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "tritonserver").write_text("no program")
    with pytest.raises(SetupError, match="does not run"):
        host.known_flags(tmp_path / "tritonserver", ["--http-max-input-size=1000"])


# shared memory and processes


def test_enough_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(10**10, 0, 10**10))
    assert host.check_shared_memory() == 10**10


def test_too_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(64 * 10**6, 0, 64 * 10**6))
    with pytest.raises(SetupError, match=r"64 MB free.*--shm-size"):
        host.check_shared_memory()


def test_no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SHARED_MEMORY", tmp_path / "missing")
    with pytest.raises(SetupError, match="mount a tmpfs"):
        host.check_shared_memory()


def finished_child() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", ""])


def test_process_alive() -> None:
    assert host.process_alive(os.getpid())
    child = finished_child()
    child.wait()
    assert not host.process_alive(child.pid)


def test_a_zombie_is_not_alive() -> None:
    with finished_child() as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert host.process_known(child.pid)
        assert not host.process_alive(child.pid)
    assert not host.process_known(child.pid)


def test_a_process_with_an_odd_name_is_alive(tmp_path: Path) -> None:
    """The name stands in brackets in /proc/PID/stat and may have brackets and blanks itself."""
    program = tmp_path / "a) Z (b"
    program.symlink_to(Path(shutil.which("cat") or "/bin/cat"))
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"x")
        child.stdin.flush()
        assert child.stdout.read(1) == b"x"
        assert host.process_alive(child.pid)


def test_only_regions_of_dead_processes_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = finished_child()
    child.wait()
    dead, alive = child.pid, os.getpid()
    names = [
        f"tsam-{dead}_sam2_0",
        f"tsam-{dead}",
        f"tsam-{alive}_sam2_0",
        f"tsam-{alive}",
        "tsam-notapid_1",
        "tsam-",
        f"other-{dead}_1",
        f"{dead}_1",
    ]
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.setattr(host, "SHARED_MEMORY", tmp_path)
    swept = host.sweep_shared_memory("tsam-")
    assert sorted(swept) == sorted(names[:2])
    assert {path.name for path in tmp_path.iterdir()} == set(names[2:])
    assert host.sweep_shared_memory("tsam-") == []


def test_a_region_that_vanishes_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = finished_child()
    child.wait()
    region = tmp_path / f"tsam-{child.pid}_1"
    region.touch()
    monkeypatch.setattr(host, "SHARED_MEMORY", tmp_path)

    def ask_and_remove(_: Any) -> bool:
        region.unlink()
        return False

    monkeypatch.setattr(host, "process_alive", ask_and_remove)
    host.sweep_shared_memory("tsam-")
    assert not region.exists()
