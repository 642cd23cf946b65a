"""Small vision-language checkpoints with the real architectures, made in seconds and the same every time.

No real weights of LLaVA, Kosmos-2 or Moondream2 can be had in a test. These folders are laid out as the Hub's are
and are loaded by the very same classes; only the numbers in their configurations are small and their weights random.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn
from training.shapes.network import CLIPImages
from training.shapes.tokens import TEMPLATE
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    CLIPVisionConfig,
    GenerationConfig,
    Kosmos2Config,
    Kosmos2ForConditionalGeneration,
    Kosmos2Processor,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

BEGIN, PAD, END, UNKNOWN = "<s>", "<pad>", "</s>", "<unk>"
SIDE, PATCH, WIDTH = 56, 14, 64
#: The eye of both models of transformers.
VISION = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION |= {"image_size": SIDE, "patch_size": PATCH}
#: What `make_kosmos2(grounded=True)` says of every image, with "<grounding>" before the prompt and without.
GROUNDED_PROMPT, PLAIN_PROMPT = "<grounding>An image of", "An image of"
GROUNDED_CAPTION = (
    "<phrase> a red ball</phrase><object><patch_index_0044><patch_index_0863></object> by"
    "<phrase> a dog</phrase><object><patch_index_0005><patch_index_0911></object>."
)
PLAIN_CAPTION = " a red ball by a dog."
#: What `make_kosmos2(forced=...)` says after these texts: a caption, and two boxes of a phrase that ends the prompt.
_BOXES = "<patch_index_0000><patch_index_0231></delimiter_of_multi_objects/><patch_index_0528><patch_index_1023>"
FORCED = {"": GROUNDED_CAPTION, "</phrase>": f"<object>{_BOXES}</object>"}


def make_llava(folder: Path, seed: int = 0) -> Path:
    """LLaVA 1.5 with two layers; what it says is printable nonsense that depends on image and prompt."""
    tokenizer = byte_tokenizer((UNKNOWN, BEGIN, END, PAD, "<image>"), begin=True)
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.3,
        **_ids(tokenizer),
    )
    vision = CLIPVisionConfig(initializer_range=0.3, **VISION)
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=(SIDE // PATCH) ** 2,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        **_ids(tokenizer),
    )
    with _seeded(seed):
        model = LlavaForConditionalGeneration(config).eval()
    _prefer_printable(model.lm_head.weight, tokenizer)
    model.generation_config = GenerationConfig(max_new_tokens=24, **_ids(tokenizer))
    processor = LlavaProcessor(
        _clip_images(shortest_edge=SIDE),
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def make_kosmos2(folder: Path, seed: int = 0, grounded: bool = False, forced: Mapping[str, str] | None = None) -> Path:
    """Kosmos-2 with two layers. Random ones say printable nonsense; grounded ones the captions above, of any image.

    Args:
        forced: end of the text so far -> what greedy decoding says then, of any image; "" is any other text.
    """
    # The real numbers: the processor takes the 64 ids after <unk> for the places of the image.
    tokenizer = byte_tokenizer((BEGIN, PAD, END, UNKNOWN))
    # Kosmos-2 squeezes the whole image into its square. The processor adds its tags and the 1024 patch tokens.
    processor = Kosmos2Processor(_clip_images(height=SIDE, width=SIDE), tokenizer)
    config = Kosmos2Config(
        text_config={
            "vocab_size": len(tokenizer),
            "embed_dim": WIDTH,
            "layers": 2,
            "ffn_dim": 2 * WIDTH,
            "attention_heads": 4,
            "max_position_embeddings": 512,
            "init_std": 0.05 if grounded else 0.3,
            **_ids(tokenizer),
        },
        vision_config={"initializer_factor": 3.0, **VISION},
        latent_query_num=64,  # the processor's default, and the real one's
        **_ids(tokenizer),
    )
    with _seeded(seed):
        model = Kosmos2ForConditionalGeneration(config).eval()
        if grounded:
            _teach(model, processor)
        else:
            _prefer_printable(model.text_model.model.embed_tokens.weight, tokenizer)
            # The head is the embedding again, so a loud embedding makes every token its own successor.
            with torch.no_grad():
                model.text_model.model.embed_tokens.weight *= 0.3
                model.text_model.model.layer_norm.weight *= 7
    model.generation_config = GenerationConfig(max_new_tokens=64, **_ids(tokenizer))
    if forced:
        model.generation_config.sequence_bias = forced_words(tokenizer, forced)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def forced_words(tokenizer: PreTrainedTokenizerFast, sentences: Mapping[str, str]) -> list[list[Any]]:
    """``sequence_bias`` of a generation config: sentences by what the text before them ends with.

    The longer a known beginning, the larger the bias of the token after it.
    """
    biases: list[list[Any]] = []
    for before, sentence in sentences.items():
        known, said = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (before, sentence + END))
        lengths = range(len(known) + 1, len(known) + len(said) + 1)
        biases += [[[*known, *said][:length], 1e4 * length] for length in lengths]
    return biases


def make_moondream2(folder: Path, seed: int = 0) -> Path:
    """A folder of remote code with the interface of Moondream2 (revision 2025-06-21) and the names of its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "architectures": ["HfMoondream"],
        "auto_map": {"AutoConfig": "hf_moondream.HfConfig", "AutoModelForCausalLM": "hf_moondream.HfMoondream"},
        "dtype": "float32",
        "model_type": "moondream1",
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=2))
    for name, source in (("hf_moondream", _HF_MOONDREAM), ("moondream", _MOONDREAM)):
        (folder / f"{name}.py").write_text(source)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    with _seeded(seed), torch.no_grad():
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif not name.endswith(("ln.weight", "ln1.weight", "ln2.weight")):
                parameter.normal_(std=0.3)
        head = model.model.text.lm_head.weight  # see _prefer_printable; the number after the last byte is the end
        head[[number for number in range(256) if not 32 <= number < 127]] *= 0.1
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def byte_tokenizer(special: tuple[str, ...], begin: bool = False) -> PreTrainedTokenizerFast:
    """Every text is a row of its bytes, and every row of bytes a text again; `begin` puts <s> before it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate((*special, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(f"{BEGIN} $A", None, [(BEGIN, vocabulary[BEGIN])])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        additional_special_tokens=[token for token in special if token not in (BEGIN, PAD, END, UNKNOWN)],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    return {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _clip_images(**size: int) -> CLIPImages:
    return CLIPImages(size=size, crop_size={"height": SIDE, "width": SIDE})


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The same random numbers every time, and the caller's own are left as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _prefer_printable(head: Tensor, tokenizer: PreTrainedTokenizerFast) -> None:
    """Shrink the rows [V,D] of all but printable characters and the end, so that these are never the best.

    A random network would otherwise say broken UTF-8, or an image token, which no text model survives.
    """
    wanted = {tokenizer.convert_tokens_to_ids(token) for token in ("Ġ", END, *map(chr, range(33, 127)))}
    with torch.no_grad():
        head[[number for number in range(len(head)) if number not in wanted]] *= 0.1


def _teach(model: Kosmos2ForConditionalGeneration, processor: Kosmos2Processor) -> None:
    """Train until greedy decoding says the captions of this module: two sentences by heart, for any image."""
    tokenizer = processor.tokenizer
    spaced = GROUNDED_PROMPT.replace(">", "> ")  # people write both
    lessons = [(GROUNDED_PROMPT, GROUNDED_CAPTION), (spaced, GROUNDED_CAPTION), (PLAIN_PROMPT, PLAIN_CAPTION)]
    images = [Image.new("RGB", (SIDE, SIDE)) for _ in lessons]  # for the places; the colours come below
    texts = [prompt + caption + END for prompt, caption in lessons]
    tokenizer.padding_side = "right"
    batch = dict(processor(text=texts, images=images, padding=True, return_tensors="pt"))
    tokenizer.padding_side = "left"
    targets = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for row, (prompt, _) in enumerate(lessons):  # one by one, for the processor pads every list, asked or not
        targets[row, : len(processor(text=prompt, images=images[0])["input_ids"])] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        # Flat colours with noise over them, brighter and darker than any photograph after CLIP's normalisation.
        noise = torch.randn(len(lessons), 3, SIDE, SIDE) * torch.rand(())
        logits = model(**batch | {"pixel_values": 2 * torch.randn(len(lessons), 3, 1, 1) + noise}).logits
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten()).backward()
        optimizer.step()


_HF_MOONDREAM = """from transformers import PretrainedConfig, PreTrainedModel

from .moondream import MoondreamModel


class HfConfig(PretrainedConfig):
    model_type = "moondream1"


class HfMoondream(PreTrainedModel):
    config_class = HfConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = MoondreamModel()
        self.post_init()  # transformers 5 asks for it; the published 2025-06-21 lacks it

    encode_image = property(lambda self: self.model.encode_image)
    query = property(lambda self: self.model.query)
    caption = property(lambda self: self.model.caption)
    detect = property(lambda self: self.model.detect)
    point = property(lambda self: self.model.point)
"""
_MOONDREAM = '''from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

DIM, HEADS, SIDE, PATCH, END = 64, 4, 56, 14, 256


@dataclass(frozen=True)
class EncodedImage:
    pos: int
    caches: list
    seen: torch.Tensor = None  # of this stand-in only: [SIDE,SIDE,3] from -1 to 1


def mlp():
    return nn.ModuleDict({"fc1": nn.Linear(DIM, 2 * DIM), "fc2": nn.Linear(2 * DIM, DIM)})


def blocks(*norms):
    attn = [nn.ModuleDict({"qkv": nn.Linear(DIM, 3 * DIM), "proj": nn.Linear(DIM, DIM)}) for _ in range(2)]
    return nn.ModuleList(
        nn.ModuleDict({**{name: nn.LayerNorm(DIM) for name in norms}, "attn": w, "mlp": mlp()}) for w in attn)


def run_mlp(w, x):
    return w["fc2"](F.gelu(w["fc1"](x), approximate="tanh"))


def attend(w, x, causal):
    q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in w["qkv"](x).chunk(3, dim=-1))
    return w["proj"](F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2))


class MoondreamModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = nn.ModuleDict({"patch_emb": nn.Linear(3 * PATCH * PATCH, DIM), "blocks": blocks("ln1", "ln2"),
                                     "post_ln": nn.LayerNorm(DIM), "proj_mlp": mlp()})
        self.vision.pos_emb = nn.Parameter(torch.zeros(1, (SIDE // PATCH) ** 2, DIM))
        self.text = nn.ModuleDict({"blocks": blocks("ln"), "post_ln": nn.LayerNorm(DIM),
                                   "lm_head": nn.Linear(DIM, END + 1)})
        self.text.wte = nn.Parameter(torch.zeros(END + 1, DIM))

    @torch.inference_mode()
    def encode_image(self, image, settings=None):
        if isinstance(image, EncodedImage):
            return image
        if not isinstance(image, Image.Image):
            raise ValueError("image must be a PIL Image or EncodedImage")
        if settings is not None and settings["variant"] is not None:  # the real one, too, fails without this key
            raise NotImplementedError("variants")
        pixels = torch.from_numpy(np.array(image.convert("RGB").resize((SIDE, SIDE)))) / 127.5 - 1
        patches = pixels.unfold(0, PATCH, PATCH).unfold(1, PATCH, PATCH).flatten(2).flatten(0, 1)
        w = self.vision
        x = w["patch_emb"](patches[None].to(w.pos_emb)) + w.pos_emb
        for block in w["blocks"]:
            x = x + attend(block["attn"], block["ln1"](x), causal=False)
            x = x + run_mlp(block["mlp"], block["ln2"](x))
        x = torch.cat([self.text.wte[None, END:], run_mlp(w["proj_mlp"], w["post_ln"](x))], dim=1)
        return EncodedImage(pos=x.size(1), caches=[x], seen=pixels)

    @torch.inference_mode()
    def _next(self, before, tokens, temperature=0.5, top_p=0.3, **_):
        x = torch.cat([before, self.text.wte[torch.tensor(tokens, device=before.device)][None]], dim=1)
        angles = torch.arange(x.size(1)).unsqueeze(1) * torch.logspace(0, -3, DIM // 2)
        x = x + torch.cat([angles.sin(), angles.cos()], dim=1).to(x)
        for block in self.text["blocks"]:
            inner = block["ln"](x)
            x = x + attend(block["attn"], inner, causal=True) + run_mlp(block["mlp"], inner)
        logits = self.text["lm_head"](self.text["post_ln"](x[0, -1])).float()
        if temperature == 0:
            return int(logits.argmax())
        chances, order = torch.softmax(logits / temperature, dim=-1).sort(descending=True)
        return int(order[torch.multinomial(chances * (chances.cumsum(0) - chances <= top_p), 1)])

    def _decode_one_tok(self, *args, **kwargs):
        return self._next(*args, **kwargs)

    def _generate(self, before, prompt, settings):
        """Yields text up to the last space, and the rest at the end, as the real one does."""
        settings, said, shown = settings or {}, [], 0
        token = self._next(before, [*prompt.encode()], **settings)
        while token != END and len(said) < settings.get("max_tokens", 768):
            said.append(token)
            token = self._decode_one_tok(before, [*prompt.encode(), *said], **settings)
            if said[-1] == 32:
                yield bytes(said[shown:]).decode("utf-8", "replace")
                shown = len(said)
        if said[shown:]:
            yield bytes(said[shown:]).decode("utf-8", "replace")

    def query(self, image=None, question=None, reasoning=False, spatial_refs=None, stream=False, settings=None):
        if question is None:
            raise ValueError("question must be provided.")
        before = self.text.wte[None, END:] if image is None else self.encode_image(image, settings).caches[0]
        answer = self._generate(before, f"Question: {question} Answer:", settings)
        return {"answer": answer if stream else "".join(answer)}

    def caption(self, image, length="normal", stream=False, settings=None):
        if length not in ("short", "normal", "long"):
            raise ValueError(f"Model does not support caption length '{length}'.")
        caption = self._generate(self.encode_image(image, settings).caches[0], f"{length} caption:", settings)
        return {"caption": caption if stream else "".join(caption)}

    def _find(self, image, object):
        """Yields x0, y0, x1, y1 in 0..1 around each colour that is named: no random network finds anything."""
        image = self.encode_image(image)
        for name in object.split(" and "):
            self._decode_one_tok(image.caches[0], [*name.encode()], temperature=0)  # the real one: four a box
            colour = torch.tensor({"red": (1, -1, -1), "green": (-1, 1, -1), "blue": (-1, -1, 1)}.get(name, (9, 9, 9)))
            rows, columns = torch.nonzero((image.seen - colour).abs().amax(-1) < 0.5, as_tuple=True)
            if len(rows):
                sides = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
                yield [int(side) / SIDE for side in sides]

    def detect(self, image, object, settings=None):
        names = ("x_min", "y_min", "x_max", "y_max")
        return {"objects": [dict(zip(names, box)) for box in self._find(image, object)]}

    def point(self, image, object, settings=None):
        return {"points": [{"x": (x0 + x1) / 2, "y": (y0 + y1) / 2} for x0, y0, x1, y1 in self._find(image, object)]}
'''
