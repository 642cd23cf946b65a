"""How LLaVA and Kosmos-2 are spoken to: prompts, processors, and what their tokens mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image

from triton_sam.engines.vlm.base import Question
from triton_sam.engines.vlm.crops import Crop, keeps_ratio
from triton_sam.errors import InvalidInput

#: How much longer than wide an image may be before only the part that is seen goes to the processor.
_LONGEST_RATIO = 8
_PATCH, _PLACE, _PATCHES = re.compile(r"<patch_index_([^>]*)>"), re.compile("[0-9]{4}"), 1024


class _Processed:
    """What both share: a processor of transformers with a tokenizer and an image processor."""

    without_tags = False

    def __init__(self, processor: Any, network: Any) -> None:
        self._processor = processor
        tokenizer = processor.tokenizer
        self.pad_token = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._processor.tokenizer.decode(tokens, skip_special_tokens=True))

    def entities(self, question: Question, tokens: Sequence[int]) -> list[Mapping[str, Any]] | None:
        return None

    def _encode(self, question: Question, text: str) -> dict[str, torch.Tensor]:
        return dict(self._processor(images=self._visible(question), text=text, return_tensors="pt"))

    def _visible(self, question: Question) -> Image.Image:
        """What the model will see of the image.

        A processor that fits the shorter side enlarges all of the image before it takes the middle: of one that is a
        thousand times as wide as high that would be gigabytes. Less extreme ones it gets as they are.
        """
        width, height = question.image.size
        if max(width, height) <= _LONGEST_RATIO * min(width, height) or not keeps_ratio(
            self._processor.image_processor
        ):
            return question.image
        left, top, right, bottom = Crop.of(self._processor.image_processor, (width, height)).seen
        # Some more than is seen: resampling looks at neighbours, and the middle must stay the middle.
        more_x, more_y = min(left, width - right, _LONGEST_RATIO), min(top, height - bottom, _LONGEST_RATIO)
        part = question.image.crop((left - more_x, top - more_y, right + more_x, bottom + more_y))
        if max(part.size) > _LONGEST_RATIO * _LONGEST_RATIO * min(part.size):
            raise InvalidInput(f"the image is {width} x {height} pixels, which no model can look at: send a part of it")
        return part


class ChatSpeaker(_Processed):
    """A conversation through the checkpoint's own chat template; the image stands before the first question."""

    def __init__(self, processor: Any, network: Any) -> None:
        super().__init__(processor, network)
        if not getattr(processor, "image_token", None) or not getattr(processor, "chat_template", None):
            raise ValueError("it is of another model: there is no chat template with a place for the image")

    def inputs(self, question: Question) -> dict[str, torch.Tensor]:
        mark = str(self._processor.image_token)
        conversation = []
        for number, message in enumerate(question.messages):
            if mark in message.text:
                raise InvalidInput(f"{mark} in a text marks the place of the image, which is known: leave it out")
            image = [{"type": "image"}] if number == 0 else []
            conversation.append({"role": message.role, "content": [*image, {"type": "text", "text": message.text}]})
        text = self._processor.apply_chat_template(conversation, add_generation_prompt=True)
        return self._encode(question, text)


class GroundedSpeaker(_Processed):
    """Plain text that the model goes on with, naming places; the place of a phrase is two of 32 x 32 patches."""

    without_tags = True
    _GROUNDING = "<grounding>"

    def __init__(self, processor: Any, network: Any) -> None:
        super().__init__(processor, network)
        if not hasattr(processor, "post_process_generation") or not hasattr(network, "text_model"):
            raise ValueError("it is of another model: its phrases have no places")
        network.text_model.register_forward_pre_hook(_true_positions, with_kwargs=True)

    def inputs(self, question: Question) -> dict[str, torch.Tensor]:
        inputs = self._encode(question, self._prompt(question))
        inputs["image_embeds_position_mask"] = inputs["image_embeds_position_mask"].bool()
        return inputs

    def _prompt(self, question: Question) -> str:
        """What the model was trained to go on with; a text that begins with ``<grounding>`` is taken as it stands."""
        text = question.text
        for mark in (self._processor.boi_token, self._processor.eoi_token):
            if mark in text:
                raise InvalidInput(f"{mark} in a text marks the place of the image, which is known: leave it out")
        if any(not _PLACE.fullmatch(number) or int(number) >= _PATCHES for number in _PATCH.findall(text)):
            raise InvalidInput(f"a place in a text is <patch_index_0000> to <patch_index_{_PATCHES - 1}>")
        if text.startswith(self._GROUNDING):
            return text
        asked = f"Question: {text} Answer:" if text.rstrip().endswith("?") else text
        return f"{self._GROUNDING} {asked}"

    def entities(self, question: Question, tokens: Sequence[int]) -> list[Mapping[str, Any]] | None:
        """Of the prompt too, where a user marked a ``<phrase>`` there to have it found."""
        prompt, said = self._prompt(question), self.decode(tokens)
        text, _ = self._processor.post_process_generation(said)
        whole, found = self._processor.post_process_generation(prompt + said)
        begin = len(whole) - len(text)
        crop = Crop.of(self._processor.image_processor, question.size)
        return [
            {
                "phrase": phrase,
                "start": start - begin if start >= begin else None,
                "end": end - begin if start >= begin else None,
                "boxes": [place for box in boxes if (place := crop.to_original(box)) is not None],
            }
            for phrase, (start, end), boxes in found
        ]


def _true_positions(module: Any, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Each token's place in its own row: by itself the network counts the padding of shorter rows as places too."""
    mask = named.get("attention_mask")  # [B,T]; none where nothing is padded
    if mask is not None:
        places = mask.cumsum(-1) * mask + module.config.pad_token_id
        named["position_ids"] = places[:, -named["input_ids"].shape[1] :]
    return arguments, named
