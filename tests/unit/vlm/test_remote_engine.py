"""Checkpoints with code of their own: what is said, how the code is loaded, and what it may fetch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.unit.vlm.helpers import Heard, ask, picture, question
from tests.unit.vlm.placement import ON_CPU
from tests.vlm_checkpoints import byte_tokenizer
from triton_sam.engines.vlm.loading import load_engine
from triton_sam.engines.vlm.remote_code import load_network
from triton_sam.engines.vlm.remote_engine import RemoteCodeEngine
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.models.vlm_catalog import get_vlm

pytestmark = pytest.mark.torch

SPEC = get_vlm("vlm:moondream2")
KEYS = Path(__file__).parents[2] / "data" / "moondream2_keys.json"
QUESTIONS = ["What is it?", "Tell me more about this image.", "Hm"]


@pytest.fixture(scope="module")
def engine(moondream2_folder: Path) -> RemoteCodeEngine:
    engine = load_engine(SPEC, moondream2_folder, ON_CPU, 4)
    assert isinstance(engine, RemoteCodeEngine)
    return engine


@pytest.fixture(scope="module")
def network(moondream2_folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(moondream2_folder, trust_remote_code=True).eval()


def said(network: Any, text: str, number: int, count: int = 24) -> str:
    settings = {"temperature": 0, "max_tokens": count}
    return str(network.query(network.encode_image(picture(number)), text, settings=settings)["answer"])


def test_the_small_network_has_weights_of_the_published_names(moondream2_folder: Path) -> None:
    """All but the region head, which only detecting and pointing need; the real one has more blocks of each kind."""
    published = json.loads(KEYS.read_text())["keys"]
    ours = load_file(moondream2_folder / "model.safetensors")
    assert ours.keys() <= published.keys()
    assert all(tensor.ndim == len(published[name]) for name, tensor in ours.items())


def test_it_takes_one_question_at_a_time(engine: RemoteCodeEngine) -> None:
    assert (engine.batch, engine.concurrent) == (1, False)
    assert engine.nbytes > 0
    with pytest.raises(InvalidInput, match="one question at a time"):
        engine.prepare(question(["a", "b", "c"]))


@pytest.mark.parametrize("count", [1, 24, 60])
@pytest.mark.parametrize("text", QUESTIONS)
def test_it_says_what_its_code_says(text: str, count: int, engine: RemoteCodeEngine, network: Any) -> None:
    heard = ask(engine, question(text, 7, max_new_tokens=count))[0]
    assert heard.text == said(network, text, 7, count).strip()
    assert heard.ending is not None


def test_several_are_answered_one_after_the_other(engine: RemoteCodeEngine, network: Any) -> None:
    heard = ask(engine, *(question(text, number) for number, text in enumerate(QUESTIONS)))
    assert [one.text for one in heard] == [said(network, text, n).strip() for n, text in enumerate(QUESTIONS)]


def test_what_was_cut_at_its_length_says_so(engine: RemoteCodeEngine, network: Any) -> None:
    assert len(said(network, "What is it?", 7, 60)) > 30
    heard = ask(engine, question("What is it?", 7, max_new_tokens=10))[0]
    assert heard.ending is not None
    assert heard.ending.reason == "length"


def test_stop_words(engine: RemoteCodeEngine, network: Any) -> None:
    whole = said(network, "What is it?", 7, 60).strip()
    stop = whole[len(whole) // 2 :][:2]
    heard = ask(engine, question("What is it?", 7, max_new_tokens=60, stop=(stop,)))[0]
    assert heard.text == whole.partition(stop)[0].strip()
    assert heard.ending is not None
    assert heard.ending.reason == "stop"


class Counted:
    """An interface like moondream2's whose words and steps are counted."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.encoded: list[Any] = []
        self.steps = 0
        self.closed = False

    def parameters(self) -> list[torch.Tensor]:
        return [torch.zeros(3)]

    def encode_image(self, image: Any) -> Any:
        self.encoded.append(image)
        return ("encoded", len(self.encoded))

    def query(self, image: Any, text: str, stream: bool, settings: dict[str, Any]) -> dict[str, Any]:
        assert image[0] == "encoded"

        def speak() -> Any:
            try:
                for word in self.words:
                    self.steps += 1
                    yield word
            finally:
                self.closed = True

        return {"answer": speak()}


def test_nobody_listens_any_more() -> None:
    network = Counted([f"w{number} " for number in range(100)])
    heard = ask(RemoteCodeEngine(network), question("a"), listeners=[Heard(leaves_after=3)])[0]
    assert heard.ending is None
    assert network.steps <= 5
    assert network.closed


def test_a_stop_word_ends_the_code() -> None:
    network = Counted(["a ", "b STO", "P c", "d"])
    assert ask(RemoteCodeEngine(network), question("a", stop=("STOP",)))[0].text == "a b"
    assert (network.steps, network.closed) == (3, True)


def test_an_image_is_encoded_once_for_its_questions_and_few_are_kept() -> None:
    network = Counted(["x"])
    engine = RemoteCodeEngine(network)
    ask(engine, question("a", 1), question("b", 1))
    assert len(network.encoded) == 1
    ask(engine, *(question("a", number) for number in (2, 3, 4, 1)))
    assert len(network.encoded) == 4
    ask(engine, question("a", 5), question("a", 1))  # the one not used the longest was image 2
    assert len(network.encoded) == 5
    ask(engine, question("a", 2))
    assert len(network.encoded) == 6


def test_seeds(engine: RemoteCodeEngine) -> None:
    hot = {"temperature": 1.5, "max_new_tokens": 12}
    before = ask(engine, question("a", seed=5, **hot))[0].text
    assert ask(engine, question("a", seed=5, **hot))[0].text == before


# -- the code itself ---------------------------------------------------------------------------------------------

CODE = """import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
{imports}

class TinyConfig(PretrainedConfig):
    model_type = "tiny-of-a-test"


class Tiny(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("turns", torch.arange(6.0) * 2, persistent=False)
        {body}
        self.post_init()
"""


def write_code(folder: Path, imports: str = "", body: str = "", dtype: torch.dtype = torch.float32) -> Path:
    folder.mkdir()
    auto_map = {"AutoConfig": "tiny.TinyConfig", "AutoModelForCausalLM": "tiny.Tiny"}
    (folder / "config.json").write_text(json.dumps({"model_type": "tiny-of-a-test", "auto_map": auto_map}))
    (folder / "tiny.py").write_text(CODE.format(imports=imports, body=body))
    weights = {"layer.weight": torch.full((4, 4), 0.5, dtype=dtype), "layer.bias": torch.ones(4, dtype=dtype)}
    save_file(weights, folder / "model.safetensors")
    return folder


def test_buffers_that_no_file_has_are_what_the_code_makes(tmp_path: Path) -> None:
    network = load_network(write_code(tmp_path / "buffers"), dict)
    assert network.turns.tolist() == [0, 2, 4, 6, 8, 10]
    assert network.layer.weight.tolist() == [[0.5] * 4] * 4


def test_numbers_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """Or the network takes twice the memory that was counted for it."""
    network = load_network(write_code(tmp_path / "halves", dtype=torch.float16), dict)
    assert network.layer.weight.dtype == torch.float16


def test_its_tokenizer_comes_from_a_pinned_folder(tmp_path: Path) -> None:
    import tokenizers

    pinned = tmp_path / "pinned"
    pinned.mkdir()
    byte_tokenizer(("<unk>", "<s>", "</s>", "<pad>")).backend_tokenizer.save(str(pinned / "tokenizer.json"))
    imports = "from tokenizers import Tokenizer"
    folder = write_code(tmp_path / "fetches", imports, 'self.words = Tokenizer.from_pretrained("some/repo")')
    network = load_network(folder, lambda: {"some/repo": pinned})
    assert network.words.decode(network.words.encode("A dog.").ids) == "A dog."
    with pytest.raises(SetupError, match="needs some/repo, which is not pinned"):
        load_engine(SPEC, folder, ON_CPU, 1, dict)
    import sys

    module = sys.modules[type(network).__module__]
    assert module.Tokenizer is tokenizers.Tokenizer  # the swap is over


def test_a_checkpoint_without_code_or_with_other_weights_is_one_sentence(tmp_path: Path, llava_folder: Path) -> None:
    with pytest.raises(SetupError, match=r"names no class for AutoModelForCausalLM"):
        load_engine(SPEC, llava_folder, ON_CPU, 1)
    folder = write_code(tmp_path / "other")
    save_file({"layer.weight": torch.zeros(4, 4)}, folder / "model.safetensors")
    with pytest.raises(SetupError, match=r"the checkpoint of vlm:moondream2 cannot be loaded .*layer\.bias") as caught:
        load_engine(SPEC, folder, ON_CPU, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reference", ["somebody/else--code.Network", "elsewhere.Network"])
def test_code_comes_from_the_folder_and_nowhere_else(reference: str, tmp_path: Path) -> None:
    """transformers itself would take the former from another repository, at whatever revision there is."""
    folder = write_code(tmp_path / "code")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"]["AutoModelForCausalLM"] = reference
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SetupError, match="names code of another repository"):
        load_network(folder, dict)
