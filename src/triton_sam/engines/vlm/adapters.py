"""Adapters for LLaVA and Kosmos-2: prompt formats, processors, and how their tokens become text and boxes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image

from triton_sam.engines.vlm.base import Question
from triton_sam.engines.vlm.crops import Crop, keeps_ratio
from triton_sam.engines.vlm.patches import Located, read_located
from triton_sam.engines.vlm.regions import Region, asked_object, asked_phrase, box_region, place_shares, point_region
from triton_sam.errors import InvalidInput
from triton_sam.models.vlm_specs import Task, VlmSpec

#: Beyond this aspect ratio only the visible part of an image goes to the processor.
_LONGEST_RATIO = 8
#: The phrase of boxes that the model gives without one.
_NAMELESS = "object"
_PATCH, _PLACE, _PATCHES = re.compile(r"<patch_index_([^>]*)>"), re.compile("[0-9]{4}"), 1024


class _ProcessorAdapter:
    """Base of both adapters: a processor of transformers with a tokenizer and an image processor."""

    without_tags = False

    def __init__(self, processor: Any, network: Any, spec: VlmSpec) -> None:
        self._processor = processor
        self._spec = spec
        tokenizer = processor.tokenizer
        self.pad_token = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._processor.tokenizer.decode(tokens, skip_special_tokens=True))

    def entities(self, question: Question, tokens: Sequence[int]) -> list[Mapping[str, Any]] | None:
        return None

    def regions(self, question: Question, tokens: Sequence[int]) -> list[Region]:
        return []

    def _crop(self, question: Question) -> Crop:
        return Crop.of(self._processor.image_processor, question.size)

    def _encode(self, question: Question, text: str) -> dict[str, torch.Tensor]:
        return dict(self._processor(images=self._visible(question), text=text, return_tensors="pt"))

    def _visible(self, question: Question) -> Image.Image:
        """The part of the image that the model will see.

        A processor that fits the shorter side enlarges the whole image before it crops the centre. For an image a
        thousand times as wide as high that would take gigabytes. Less extreme images are passed unchanged.
        """
        width, height = question.image.size
        if max(width, height) <= _LONGEST_RATIO * min(width, height) or not keeps_ratio(
            self._processor.image_processor
        ):
            return question.image
        left, top, right, bottom = Crop.of(self._processor.image_processor, (width, height)).seen
        # With a margin: resampling reads neighbouring pixels, and the centre must stay the centre.
        more_x, more_y = min(left, width - right, _LONGEST_RATIO), min(top, height - bottom, _LONGEST_RATIO)
        part = question.image.crop((left - more_x, top - more_y, right + more_x, bottom + more_y))
        if max(part.size) > _LONGEST_RATIO * _LONGEST_RATIO * min(part.size):
            raise InvalidInput(f"the image of {width} x {height} pixels is too long and narrow: send a part of it")
        return part


class ChatAdapter(_ProcessorAdapter):
    """Conversations in the checkpoint's own chat template. The image comes before the first question.

    Its regions are the cells of ``spec.places``: boxes where boxes are asked for, else the middles, of which a
    segmenter makes far better masks. The thing is there, but the cell is much larger than it.
    """

    def __init__(self, processor: Any, network: Any, spec: VlmSpec) -> None:
        super().__init__(processor, network, spec)
        if not getattr(processor, "image_token", None) or not getattr(processor, "chat_template", None):
            raise ValueError("it belongs to another model: it has no chat template with an image token")

    def inputs(self, question: Question) -> dict[str, torch.Tensor]:
        token = str(self._processor.image_token)
        conversation = []
        for number, (role, said) in enumerate(self._turns(question)):
            if token in said:
                raise InvalidInput(f"the server inserts the image token {token} itself: remove it from the text")
            image = [{"type": "image"}] if number == 0 else []
            conversation.append({"role": role, "content": [*image, {"type": "text", "text": said}]})
        text = self._processor.apply_chat_template(conversation, add_generation_prompt=True)
        return self._encode(question, text)

    def _turns(self, question: Question) -> list[tuple[str, str]]:
        """(role, text) of each message; an object's name becomes the question that the model knows."""
        if question.task in (Task.DETECT, Task.POINT):
            return [("user", self._spec.asks_where.replace("{object}", asked_object(question.text)))]
        return [(message.role, message.text) for message in question.messages]

    def regions(self, question: Question, tokens: Sequence[int]) -> list[Region]:
        found: list[Region] = []
        crop = self._crop(question)
        for label, (x0, y0, x1, y1) in place_shares(self.decode(tokens), self._spec.places):
            named = question.task is not Task.GROUND
            if named and not all(word in question.text.lower() for word in label.lower().split()):
                continue  # it does not know what was asked for, and has named something else
            if question.task is Task.DETECT:
                found += box_region(label, (x0, y0, x1, y1), crop)
            else:
                found += point_region(label, (x0 + x1) / 2, (y0 + y1) / 2, crop)
        return found


class GroundedAdapter(_ProcessorAdapter):
    """Plain text that the model continues, with the locations of phrases: two of 32 x 32 patches each."""

    without_tags = True
    _GROUNDING = "<grounding>"

    def __init__(self, processor: Any, network: Any, spec: VlmSpec) -> None:
        super().__init__(processor, network, spec)
        if not hasattr(processor, "post_process_generation") or not hasattr(network, "text_model"):
            raise ValueError("it belongs to another model: it gives no locations of phrases")
        network.text_model.register_forward_pre_hook(_unpadded_positions, with_kwargs=True)

    def inputs(self, question: Question) -> dict[str, torch.Tensor]:
        inputs = self._encode(question, self._prompt(question))
        inputs["image_embeds_position_mask"] = inputs["image_embeds_position_mask"].bool()
        return inputs

    def _prompt(self, question: Question) -> str:
        """The prompt in the form of the training data. A text that begins with ``<grounding>`` is used unchanged."""
        text = question.text
        if question.task is Task.DETECT:
            if "<" in text:
                raise InvalidInput("the name of an object has no tags: send it without <...>")
            return f"{self._GROUNDING}<phrase> {asked_phrase(text)}</phrase>"
        for token in (self._processor.boi_token, self._processor.eoi_token):
            if token in text:
                raise InvalidInput(f"the server inserts the image token {token} itself: remove it from the text")
        if any(not _PLACE.fullmatch(number) or int(number) >= _PATCHES for number in _PATCH.findall(text)):
            raise InvalidInput(f"a location in a text is <patch_index_0000> to <patch_index_{_PATCHES - 1}>")
        if text.startswith(self._GROUNDING):
            return text
        asked = f"Question: {text} Answer:" if text.rstrip().endswith("?") else text
        return f"{self._GROUNDING} {asked}"

    def entities(self, question: Question, tokens: Sequence[int]) -> list[Mapping[str, Any]] | None:
        """Phrases with boxes, also those that the user marked as ``<phrase>`` in the prompt."""
        begin, found = self._located(question, tokens)
        crop = self._crop(question)
        return [
            {
                "phrase": item.phrase or _NAMELESS,
                "start": item.start - begin if item.start >= begin else None,
                "end": item.end - begin if item.start >= begin else None,
                "boxes": [place for box in item.boxes if (place := crop.to_original(box)) is not None],
            }
            for item in found
        ]

    def regions(self, question: Question, tokens: Sequence[int]) -> list[Region]:
        """All phrases with boxes; for DETECT those of the phrase in the prompt alone."""
        crop = self._crop(question)
        begin, found = self._located(question, tokens)
        nameless = asked_object(question.text)
        return [
            region
            for item in found
            if question.task is not Task.DETECT or item.start < begin
            for box in item.boxes
            for region in box_region(item.phrase or nameless, box, crop)
        ]

    def _located(self, question: Question, tokens: Sequence[int]) -> tuple[int, list[Located]]:
        """(where the answer begins in the whole text, the phrases of the whole text that have boxes)."""
        prompt, said = self._prompt(question), self.decode(tokens)
        whole, found = read_located(prompt + said)
        return len(whole) - len(read_located(said)[0]), found


def _unpadded_positions(module: Any, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Sets position ids that skip the padding of shorter rows, which the network itself would count."""
    mask = named.get("attention_mask")  # [B,T]; None if nothing is padded
    if mask is not None:
        places = mask.cumsum(-1) * mask + module.config.pad_token_id
        named["position_ids"] = places[:, -named["input_ids"].shape[1] :]
    return arguments, named
