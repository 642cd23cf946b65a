"""A module compiled in one process and loaded in another, with other weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from triton_sam.engines.torch.compiled_steps import difference, is_near, load_compiled

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),  # torch's own import
]

#: Runs in the process that compiles. Matrix products need no compiler of the machine.
COMPILE = """
import sys
from pathlib import Path
import torch
from tests.unit.torch_engine.test_compiled_steps import Products
from triton_sam.engines.torch.compiled_steps import compile_module

compile_module(Products(), [torch.zeros(4, 8)], "default", Path(sys.argv[1]))
"""


class Products(nn.Module):
    """Parameters, buffers in and out of the checkpoint, a shared one, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.randn(1, 8), persistent=False)
        self.requires_grad_(False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.addmm(self.shift, tokens, self.first.weight)
        return hidden, torch.addmm(self.second.bias, hidden, self.second.weight)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    command = [sys.executable, "-W", "ignore", "-c", COMPILE, str(folder)]
    subprocess.run(command, check=True, timeout=300, cwd=Path(__file__).parents[3])
    return folder


@pytest.mark.part("bench")
def test_it_runs_with_the_weights_of_the_module_that_it_is_loaded_for(compiled: Path) -> None:
    for seed in range(2):
        torch.manual_seed(seed)
        module, tokens = Products(), torch.randn(4, 8)
        run = load_compiled(compiled, module, torch.device("cpu"))
        with torch.inference_mode():
            found, expected = run(tokens), module(tokens)
        assert isinstance(found, tuple)
        assert difference(found, expected) < 1e-6


@pytest.mark.part("bench")
def test_weights_are_no_part_of_it(compiled: Path) -> None:
    written = {path.name for path in compiled.iterdir()}
    assert written == {"code.bin", "arguments.json", "constants.safetensors"}
    assert (compiled / "constants.safetensors").stat().st_size < 100


@pytest.mark.part("bench")
def test_a_module_of_another_form_does_not_load(compiled: Path) -> None:
    with pytest.raises(KeyError):
        load_compiled(compiled, nn.Linear(8, 8), torch.device("cpu"))(torch.zeros(4, 8))


@pytest.mark.parametrize(
    ("found", "near"),
    [
        (torch.tensor([1.0, -2.0]), True),
        (torch.tensor([1.01, -2.0]), True),
        (torch.tensor([1.0, -1.8]), False),
        (torch.tensor([1.0, float("nan")]), False),
        (torch.tensor([1.0, float("inf")]), False),
        (torch.tensor([[1.0, -2.0]]), False),
        (torch.tensor([1.0, -2.0], dtype=torch.float64), False),
    ],
)
def test_what_is_near(found: Tensor, near: bool) -> None:
    assert is_near([found], [torch.tensor([1.0, -2.0])]) is near
