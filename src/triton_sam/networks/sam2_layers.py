"""SAM 2 as plain torch layers, with the names and shapes of transformers' ``Sam2Model``, for the torch engine.

The engine takes a network apart and computes in its own way: it needs the weights and a few numbers, not transformers'
``forward``, and importing transformers takes longer than everything else before a server serves. Exports and
references use transformers' own network (:func:`triton_sam.networks.segmenters.build`), and a test compares both.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.models.architecture import Architecture

_WIDTH = 256
_HEADS = 8
_MASKS = 4
#: Kernel, stride and padding of the patch embedding.
_PATCH = (7, 4, 3)
_EPS = 1e-6
#: Pixels of a cell of the embedding.
_CELL = 16


class Sam2Layers(nn.Module):
    """See the module. It has no ``forward``."""

    def __init__(self, architecture: Architecture, side: int) -> None:
        """
        Args:
            side: side of the square input, pixels.
        """
        super().__init__()
        self.no_memory_embedding = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.shared_image_embedding = _Waves()
        self.vision_encoder = _VisionEncoder(architecture, side)
        self.prompt_encoder = _PromptEncoder(side)
        self.mask_decoder = _MaskDecoder()
        self._grid = side // _CELL

    def get_image_wide_positional_embeddings(self) -> Tensor:
        """[1,256,grid,grid]: the positions of the embedding's cells."""
        middle = (torch.arange(self._grid, dtype=torch.float32) + 0.5) / self._grid
        y, x = torch.meshgrid(middle, middle, indexing="ij")
        found: Tensor = self.shared_image_embedding(torch.stack([x, y], dim=-1))
        return found.permute(2, 0, 1)[None]


class _Waves(nn.Module):
    """[...,2] in [0,1] -> [...,256]: sines and cosines of random directions, which are part of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.positional_embedding = nn.Buffer(torch.zeros(2, _WIDTH // 2))

    def forward(self, places: Tensor) -> Tensor:
        turns = 2 * math.pi * ((2 * places - 1) @ self.positional_embedding)
        return torch.cat([turns.sin(), turns.cos()], dim=-1)


class _Table(nn.Module):
    """An ``nn.Embedding`` of which only the weights are used.

    With zeros: random numbers on the meta device would import torch's compiler, which takes a second.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, _WIDTH))


class FeedForward(nn.Module):
    """``depth`` linear layers with activations in between."""

    def __init__(self, sizes: tuple[int, int, int], activation: nn.Module, depth: int = 2, bounded: bool = False):
        """
        Args:
            sizes: of the input, between layers, and of the output.
            bounded: ends with a sigmoid.
        """
        super().__init__()
        given, hidden, wanted = sizes
        self.activation = activation
        self.proj_in = nn.Linear(given, hidden)
        self.proj_out = nn.Linear(hidden, wanted)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth - 2))
        self.bounded = bounded

    def forward(self, tokens: Tensor) -> Tensor:
        state = self.activation(self.proj_in(tokens))
        for layer in self.layers:
            state = self.activation(layer(state))
        result: Tensor = self.proj_out(state)
        return functional.sigmoid(result) if self.bounded else result


# -- the encoder ---------------------------------------------------------------------------------------------


class _VisionEncoder(nn.Module):
    def __init__(self, architecture: Architecture, side: int) -> None:
        super().__init__()
        self.backbone = _Backbone(architecture, side)
        self.neck = _Neck(_widths(architecture))


class _Sizes(NamedTuple):
    """The part of transformers' configuration that the engine reads."""

    image_size: tuple[int, int]


class _Backbone(nn.Module):
    def __init__(self, architecture: Architecture, side: int) -> None:
        super().__init__()
        self.config = _Sizes((side, side))
        width, background, window = architecture.width, architecture.background, architecture.windows[0]
        self.pos_embed = nn.Parameter(torch.zeros(1, width, background, background))
        self.pos_embed_window = nn.Parameter(torch.zeros(1, width, window, window))
        self.patch_embed = _PatchEmbedding(width)
        blocks = [
            _Block(architecture, stage, is_first=index == 0)
            for stage, depth in enumerate(architecture.depths)
            for index in range(depth)
        ]
        for number in architecture.global_blocks:
            blocks[number].window_size = 0
        self.blocks = nn.ModuleList(blocks)
        self.stage_ends = [end - 1 for end in itertools.accumulate(architecture.depths)]

    def _get_pos_embed(self, size: tuple[int, int]) -> Tensor:
        """[1,h,w,C]: the background, resized, plus the window's part in each window."""
        background = functional.interpolate(self.pos_embed, size=size, mode="bicubic")
        times = [whole // part for whole, part in zip(background.shape, self.pos_embed_window.shape, strict=True)]
        return (background + self.pos_embed_window.tile(times)).permute(0, 2, 3, 1)


class _PatchEmbedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(3, width, *_PATCH)


class _Block(nn.Module):
    """The first block of a stage still has the window of the stage before it, and halves the grid."""

    def __init__(self, architecture: Architecture, stage: int, is_first: bool) -> None:
        super().__init__()
        widths = _widths(architecture)
        before = stage - 1 if is_first and stage > 0 else stage
        self.dim, self.dim_out = widths[before], widths[stage]
        self.window_size = architecture.windows[before]
        self.query_stride = (2, 2) if before != stage else None
        self.layer_norm1 = nn.LayerNorm(self.dim, eps=_EPS)
        self.attn = _WindowAttention(self.dim, self.dim_out, architecture.heads * 2**stage)
        self.layer_norm2 = nn.LayerNorm(self.dim_out, eps=_EPS)
        self.mlp = FeedForward((self.dim_out, 4 * self.dim_out, self.dim_out), nn.GELU())
        if self.dim != self.dim_out:
            self.proj = nn.Linear(self.dim, self.dim_out)


class _WindowAttention(nn.Module):
    def __init__(self, given: int, wanted: int, heads: int) -> None:
        super().__init__()
        self.num_attention_heads = heads
        self.qkv = nn.Linear(given, 3 * wanted)
        self.proj = nn.Linear(wanted, wanted)


class _Neck(nn.Module):
    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, _WIDTH, 1) for width in reversed(widths))
        self.fpn_top_down_levels = (2, 3)


def _widths(architecture: Architecture) -> list[int]:
    return [architecture.width * 2**stage for stage in range(len(architecture.depths))]


# -- prompts and the decoder ---------------------------------------------------------------------------------


class _PromptEncoder(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.input_image_size = side
        self.shared_embedding = _Waves()
        self.mask_embed = _MaskEmbedding()
        self.no_mask_embed = _Table(1)
        self.point_embed = _Table(4)
        self.not_a_point_embed = _Table(1)


class ChannelNorm(nn.LayerNorm):
    """Normalises the channels of [B,C,h,w]."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _MaskEmbedding(nn.Module):
    """[B,1,4h,4w] logits of a mask -> [B,256,h,w]."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.GELU()
        self.conv1 = nn.Conv2d(1, 4, 2, 2)
        self.conv2 = nn.Conv2d(4, 16, 2, 2)
        self.conv3 = nn.Conv2d(16, _WIDTH, 1)
        self.layer_norm1 = ChannelNorm(4, eps=_EPS)
        self.layer_norm2 = ChannelNorm(16, eps=_EPS)

    def forward(self, masks: Tensor) -> Tensor:
        state = self.activation(self.layer_norm1(self.conv1(masks)))
        state = self.activation(self.layer_norm2(self.conv2(state)))
        result: Tensor = self.conv3(state)
        return result


class _MaskDecoder(nn.Module):
    num_mask_tokens = _MASKS
    #: A single mask that is not stable is replaced by the best of the three others.
    dynamic_multimask_via_stability = True
    dynamic_multimask_stability_delta = 0.05
    dynamic_multimask_stability_thresh = 0.98

    def __init__(self) -> None:
        super().__init__()
        quarter, eighth = _WIDTH // 4, _WIDTH // 8
        self.iou_token = _Table(1)
        self.mask_tokens = _Table(_MASKS)
        self.transformer = _TwoWayTransformer()
        self.upscale_conv1 = nn.ConvTranspose2d(_WIDTH, quarter, 2, 2)
        self.upscale_conv2 = nn.ConvTranspose2d(quarter, eighth, 2, 2)
        self.upscale_layer_norm = ChannelNorm(quarter, eps=_EPS)
        self.output_hypernetworks_mlps = nn.ModuleList(_head(eighth) for _ in range(_MASKS))
        self.iou_prediction_head = _head(_MASKS, bounded=True)
        self.conv_s0 = nn.Conv2d(_WIDTH, eighth, 1)
        self.conv_s1 = nn.Conv2d(_WIDTH, quarter, 1)
        self.obj_score_token = _Table(1)
        self.pred_obj_score_head = _head(1)


def _head(wanted: int, *, bounded: bool = False) -> FeedForward:
    return FeedForward((_WIDTH, _WIDTH, wanted), nn.ReLU(), depth=3, bounded=bounded)


class _TwoWayTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_TwoWayBlock(is_first=number == 0) for number in range(2))
        self.final_attn_token_to_image = _Attention(_WIDTH // 2)
        self.layer_norm_final_attn = nn.LayerNorm(_WIDTH)


class _TwoWayBlock(nn.Module):
    def __init__(self, is_first: bool) -> None:
        super().__init__()
        self.skip_first_layer_pe = is_first
        self.self_attn = _Attention(_WIDTH)
        self.layer_norm1 = nn.LayerNorm(_WIDTH)
        self.cross_attn_token_to_image = _Attention(_WIDTH // 2)
        self.layer_norm2 = nn.LayerNorm(_WIDTH)
        self.mlp = FeedForward((_WIDTH, 8 * _WIDTH, _WIDTH), nn.ReLU())
        self.layer_norm3 = nn.LayerNorm(_WIDTH)
        self.layer_norm4 = nn.LayerNorm(_WIDTH)
        self.cross_attn_image_to_token = _Attention(_WIDTH // 2)


class _Attention(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.num_attention_heads = _HEADS
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(_WIDTH, inner) for _ in range(3))
        self.o_proj = nn.Linear(inner, _WIDTH)
