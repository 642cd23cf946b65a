"""MobileSAM's image encoder: TinyViT, in plain torch, with the parameter names of the official checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutput

_HEAD_WIDTH = 32
_OUTPUT_CHANNELS = 256


class _ConvNorm(nn.Module):
    """A convolution without bias and its batch norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.c = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, features: Tensor) -> Tensor:
        normed: Tensor = self.bn(self.c(features))
        return normed


class _Stem(nn.Module):
    """[N,3,H,W] -> [N,width,H/4,W/4]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.seq = nn.Sequential(_ConvNorm(3, width // 2, 3, 2), nn.GELU(), _ConvNorm(width // 2, width, 3, 2))

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.seq(pixels)
        return features


class _InvertedBottleneck(nn.Module):
    """The convolutional block of the first stage: expand four times, depthwise convolution, project back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = _ConvNorm(width, 4 * width)
        self.conv2 = _ConvNorm(4 * width, 4 * width, 3, groups=4 * width)
        self.conv3 = _ConvNorm(4 * width, width)

    def forward(self, features: Tensor) -> Tensor:
        inner = functional.gelu(self.conv1(features))
        inner = functional.gelu(self.conv2(inner))
        return functional.gelu(features + self.conv3(inner))


class _Merge(nn.Module):
    """The downsampling between two stages; ``stride`` 1 keeps the resolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _ConvNorm(inputs, outputs)
        self.conv2 = _ConvNorm(outputs, outputs, 3, stride, groups=outputs)
        self.conv3 = _ConvNorm(outputs, outputs)

    def forward(self, features: Tensor) -> Tensor:
        inner = functional.gelu(self.conv1(features))
        inner = functional.gelu(self.conv2(inner))
        merged: Tensor = self.conv3(inner)
        return merged


class _WindowAttention(nn.Module):
    """Attention within a window, with a learned bias for every distance between two cells."""

    offsets: Tensor

    def __init__(self, width: int, window: int) -> None:
        super().__init__()
        self.heads = width // _HEAD_WIDTH
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.attention_biases = nn.Parameter(torch.zeros(self.heads, window * window))
        rows, columns = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        rows, columns = rows.reshape(-1), columns.reshape(-1)
        distance = (rows[:, None] - rows).abs() * window + (columns[:, None] - columns).abs()
        self.register_buffer("offsets", distance, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N*windows,T,C] -> the same."""
        count, length, width = tokens.shape
        mixed = self.qkv(self.norm(tokens)).reshape(count, length, self.heads, 3 * _HEAD_WIDTH).transpose(1, 2)
        query, key, value = mixed.split(_HEAD_WIDTH, dim=3)
        weights = query @ key.transpose(2, 3) * _HEAD_WIDTH**-0.5 + self.attention_biases[:, self.offsets]
        attended = (weights.softmax(dim=3) @ value).transpose(1, 2).reshape(count, length, width)
        projected: Tensor = self.proj(attended)
        return projected


class _Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.fc2(functional.gelu(self.fc1(self.norm(tokens))))
        return hidden


class _WindowBlock(nn.Module):
    """Attention in windows, a local convolution, an MLP."""

    def __init__(self, width: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.attn = _WindowAttention(width, window)
        self.local_conv = _ConvNorm(width, width, 3, groups=width)
        self.mlp = _Mlp(width)

    def forward(self, features: Tensor) -> Tensor:
        """[N,C,H,W] -> the same."""
        tokens: Tensor = self.local_conv(features + self._attend(features)).permute(0, 2, 3, 1)
        tokens = tokens + self.mlp(tokens)
        return tokens.permute(0, 3, 1, 2)

    def _attend(self, features: Tensor) -> Tensor:
        # Plain numbers: only the batch axis of an exported graph is dynamic.
        width, height, length = (int(size) for size in features.shape[1:])
        side = self.window
        # Padding cells of the last windows take part in the attention: the official weights were trained that way.
        padded = functional.pad(features, (0, -length % side, 0, -height % side))
        rows, columns = -(-height // side), -(-length // side)
        cells = padded.reshape(-1, width, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
        attended: Tensor = self.attn(cells.reshape(-1, side * side, width))
        cells = attended.reshape(-1, rows, columns, side, side, width).permute(0, 5, 1, 3, 2, 4)
        return cells.reshape(-1, width, rows * side, columns * side)[:, :, :height, :length]


class _Stage(nn.Module):
    def __init__(self, blocks: Sequence[nn.Module], downsample: nn.Module | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample

    def forward(self, features: Tensor) -> Tensor:
        for block in self.blocks:
            features = block(features)
        return features if self.downsample is None else self.downsample(features)


class _ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of [N,C,H,W]."""

    def forward(self, input: Tensor) -> Tensor:
        normed: Tensor = super().forward(input.permute(0, 2, 3, 1))
        return normed.permute(0, 3, 1, 2)


class TinyVit(nn.Module):
    """[N,3,S,S] normalised pixels -> [N,256,S/16,S/16]."""

    def __init__(self, width: int, depths: Sequence[int], windows: Sequence[int]) -> None:
        """
        Args:
            width: channels of the first stage; the others have 2, 2.5 and 5 times as many.
            depths: blocks of each stage.
            windows: side of the attention window of each stage (ignored for the first, which has no attention).
        """
        super().__init__()
        widths = (width, 2 * width, 5 * width // 2, 5 * width)
        strides = (2, 2, 1)  # the last stage keeps the resolution, so the grid is a sixteenth of the image
        self.patch_embed = _Stem(width)
        self.layers = nn.ModuleList()
        for stage, (channels, depth, window) in enumerate(zip(widths, depths, windows, strict=True)):
            blocks = [
                _InvertedBottleneck(channels) if stage == 0 else _WindowBlock(channels, window) for _ in range(depth)
            ]
            last = stage == len(widths) - 1
            self.layers.append(_Stage(blocks, None if last else _Merge(channels, widths[stage + 1], strides[stage])))
        self.neck = nn.Sequential(
            nn.Conv2d(widths[-1], _OUTPUT_CHANNELS, 1, bias=False),
            _ChannelNorm(_OUTPUT_CHANNELS, eps=1e-6),
            nn.Conv2d(_OUTPUT_CHANNELS, _OUTPUT_CHANNELS, 3, padding=1, bias=False),
            _ChannelNorm(_OUTPUT_CHANNELS, eps=1e-6),
        )

    def forward(self, pixel_values: Tensor, **_: object) -> BaseModelOutput:
        """Returns the output type that transformers' ``SamModel`` expects of its vision encoder."""
        features = self.patch_embed(pixel_values)
        for stage in self.layers:
            features = stage(features)
        return BaseModelOutput(last_hidden_state=self.neck(features))
