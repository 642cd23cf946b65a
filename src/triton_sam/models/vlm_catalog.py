"""The catalogue of vision-language models: one VlmSpec row for each.

Revisions and file sizes are those that many independent projects name (moondream2's commit is the one that its owner
tagged 2025-06-21). They were not checked by a download, so the Hub's own checksums verify the files.
"""

from __future__ import annotations

from triton_sam.errors import InvalidInput
from triton_sam.models.vlm_specs import Adapter, HubSnapshot, Task, VlmSpec

FAMILY = "vlm"
#: The configuration, and the files of the tokenizer and the processor.
_TEXTS = ("config.json", "*.json", "*.jinja", "*.model")

VLM_CATALOG: dict[str, VlmSpec] = {
    spec.id: spec
    for spec in (
        VlmSpec(
            id="vlm:moondream2",
            title="Moondream 2 of 2025-06-21: small and quick; its own code runs",
            licence="Apache-2.0",
            adapter=Adapter.OWN_CODE,
            source=HubSnapshot(
                "vikhyatk/moondream2",
                "9a7d4024050840e001defacec2b00727e89149e6",
                # The repository's tokenizer.json is an old one that its code does not use.
                ("config.json", "generation_config.json", "*.py", "model.safetensors"),
            ),
            parts=(
                HubSnapshot("moondream/starmie-v1", "35192e10a54e36eabe0a7cc57a2c1aab371cafc5", ("tokenizer.json",)),
            ),
            size=3_854_600_000,
            parameters=1927.2,
            best_for="short answers about photographs, boxes and points of objects, on a small GPU",
            remote_code=True,
            tasks=(Task.DETECT, Task.POINT, Task.GROUND),
        ),
        VlmSpec(
            id="vlm:kosmos2",
            title="Kosmos-2: captions whose phrases have boxes",
            licence="MIT",
            adapter=Adapter.GROUNDED,
            source=HubSnapshot(
                "microsoft/kosmos-2-patch14-224",
                "e91cfbcb4ce051b6a55bfb5f96165a3bbf5eb82c",
                (*_TEXTS, "model.safetensors"),
            ),
            size=6_660_000_000,
            parameters=1664.5,
            best_for="captions with boxes, which a segmenter takes as prompts",
            grounds=True,
            tasks=(Task.DETECT, Task.GROUND),
        ),
        VlmSpec(
            id="vlm:llava",
            title="LLaVA 1.5, 7B: conversations about an image",
            licence="Llama 2",
            adapter=Adapter.CHAT,
            source=HubSnapshot(
                "llava-hf/llava-1.5-7b-hf", "b234b804b114d9e37bb655e11cbbb5f5e971b7a9", (*_TEXTS, "*.safetensors")
            ),
            size=14_130_000_000,
            parameters=7063.4,
            best_for="conversations, on a GPU",
            chats=True,
        ),
        VlmSpec(
            id="vlm:shapes",
            title="a toy with LLaVA's architecture that knows coloured shapes and nothing else",
            licence="Apache-2.0",
            adapter=Adapter.CHAT,
            source=None,
            size=14_023_845,
            parameters=7.0,
            best_for="trying things out without a download: a toy that knows coloured shapes and nothing else",
            tasks=(Task.DETECT, Task.POINT, Task.GROUND),
            places=(
                ("at the top left", "at the top", "at the top right"),
                ("at the left", "in the centre", "at the right"),
                ("at the bottom left", "at the bottom", "at the bottom right"),
            ),
            asks_where="Where is the {object}?",
        ),
    )
}


def get_vlm(name: str) -> VlmSpec:
    """The row of an id (``vlm:llava``) or of a Triton name (``llava``); InvalidInput that lists the ids otherwise."""
    for spec in VLM_CATALOG.values():
        if name in (spec.id, spec.name):
            return spec
    raise InvalidInput(f"there is no vision-language model {name!r}: known are {', '.join(VLM_CATALOG)}")


def is_vlm(name: str) -> bool:
    """Whether a name is that of a vision-language model, known or not; also for the family's bare name."""
    return name.partition(":")[0] == FAMILY or name in {spec.name for spec in VLM_CATALOG.values()}
