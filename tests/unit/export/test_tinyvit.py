from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.unit.export import official
from triton_sam.export.random_weights import randomise
from triton_sam.networks.tinyvit import TinyVit

pytestmark = pytest.mark.torch

WINDOWS = (7, 7, 14, 7)


def tiny(depths: tuple[int, ...] = (1, 1, 1, 1)) -> Any:
    network = TinyVit(64, depths, WINDOWS).eval().requires_grad_(False)
    randomise(network)
    generator = torch.Generator().manual_seed(1)
    for name, buffer in network.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.copy_(torch.rand(buffer.shape, generator=generator) * 0.5 + (0.5 if "var" in name else -0.25))
    return network


@pytest.fixture(scope="module")
def network() -> Any:
    return tiny()


def encode(network: Any, pixels: Tensor) -> Tensor:
    with torch.inference_mode():
        found: Tensor = network(pixels).last_hidden_state
    return found


@pytest.mark.parametrize("depths", [(2, 2, 6, 2), (1, 1, 1, 1)])
def test_names_and_shapes_are_those_of_the_official_file(depths: tuple[int, ...]) -> None:
    with torch.device("meta"):
        network = TinyVit(64, depths, WINDOWS)
    found = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    assert found == official.tiny_vit(depths, WINDOWS)


@pytest.mark.parametrize("side", [128, 224, 256, 288, 352])
def test_the_grid_is_a_sixteenth_whatever_the_windows(side: int, network: Any) -> None:
    """Grids of 8 to 22 cells: smaller than the windows, multiples of them, and neither."""
    generator = torch.Generator().manual_seed(side)
    embedding = encode(network, torch.randn(1, 3, side, side, generator=generator))
    assert embedding.shape == (1, 256, side // 16, side // 16)
    assert embedding.isfinite().all()
    assert embedding.std() > 0.1


def test_images_of_a_batch_are_independent(network: Any) -> None:
    pixels = torch.randn(3, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    together = encode(network, pixels)
    for row in range(3):
        torch.testing.assert_close(
            together[row : row + 1], encode(network, pixels[row : row + 1]), rtol=1e-3, atol=1e-4
        )


def test_far_pixels_do_not_reach_beyond_windows_and_convolutions(network: Any) -> None:
    """Attention stays in its window: a change in one corner of a large image cannot reach the other."""
    pixels = torch.randn(1, 3, 512, 512, generator=torch.Generator().manual_seed(0))
    other = pixels.clone()
    other[..., :16, :16] += 3
    difference = (encode(network, pixels) - encode(network, other)).abs().amax(dim=(0, 1))
    assert difference[0, 0] > 0.1
    assert difference[-4:, -4:].max() == 0


# one block, told anew from its description


def conv_norm(module: Any, features: Tensor) -> Tensor:
    """Convolution without bias, then the batch norm of inference written out."""
    convolved = functional.conv2d(
        features, module.c.weight, None, module.c.stride, module.c.padding, 1, module.c.groups
    )
    norm = module.bn
    scale = norm.weight / (norm.running_var + 1e-5).sqrt()
    return (convolved - norm.running_mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)


def attention_of_window(attention: Any, cells: Tensor, window: int, heads: int) -> Tensor:
    """[window*window,C] -> the same, head by head; q, k and v of each head lie side by side."""
    width = cells.shape[1]
    size = width // heads
    mixed = functional.layer_norm(cells, (width,), attention.norm.weight, attention.norm.bias, 1e-5)
    mixed = mixed @ attention.qkv.weight.T + attention.qkv.bias
    places = [(row, column) for row in range(window) for column in range(window)]
    heard = []
    for head in range(heads):
        own = mixed[:, 3 * size * head : 3 * size * (head + 1)]
        query, key, value = own[:, :size], own[:, size : 2 * size], own[:, 2 * size :]
        bias = torch.empty(len(places), len(places))
        for first, (row, column) in enumerate(places):
            for second, (other_row, other_column) in enumerate(places):
                distance = abs(row - other_row) * window + abs(column - other_column)
                bias[first, second] = attention.attention_biases[head, distance]
        heard.append((query @ key.T / size**0.5 + bias).softmax(dim=1) @ value)
    return torch.cat(heard, dim=1) @ attention.proj.weight.T + attention.proj.bias


def block_by_hand(block: Any, features: Tensor, window: int, heads: int) -> Tensor:
    width, height, length = features.shape[1:]
    padded = torch.zeros(width, -(-height // window) * window, -(-length // window) * window)
    padded[:, :height, :length] = features[0]
    attended = torch.zeros_like(padded)
    for top in range(0, padded.shape[1], window):
        for left in range(0, padded.shape[2], window):
            cells = padded[:, top : top + window, left : left + window].reshape(width, -1).T
            answer = attention_of_window(block.attn, cells, window, heads)
            attended[:, top : top + window, left : left + window] = answer.T.reshape(width, window, window)
    features = features + attended[None, :, :height, :length]
    tokens = conv_norm(block.local_conv, features)[0].reshape(width, -1).T
    mlp = block.mlp
    hidden = functional.layer_norm(tokens, (width,), mlp.norm.weight, mlp.norm.bias, 1e-5)
    hidden = functional.gelu(hidden @ mlp.fc1.weight.T + mlp.fc1.bias)
    tokens = tokens + hidden @ mlp.fc2.weight.T + mlp.fc2.bias
    return tokens.T.reshape(1, width, height, length)


@pytest.mark.parametrize(("height", "length"), [(7, 7), (14, 7), (9, 16), (3, 5)])
def test_a_window_block_by_hand(height: int, length: int, network: Any) -> None:
    block = network.layers[1].blocks[0]
    features = torch.randn(1, 128, height, length, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        wanted = block_by_hand(block, features, window=7, heads=4)
        torch.testing.assert_close(block(features), wanted, rtol=1e-4, atol=1e-4)


def test_a_convolutional_block_by_hand(network: Any) -> None:
    block = network.layers[0].blocks[0]
    features = torch.randn(1, 64, 12, 10, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        inner = functional.gelu(conv_norm(block.conv1, features))
        inner = functional.gelu(conv_norm(block.conv2, inner))
        wanted = functional.gelu(features + conv_norm(block.conv3, inner))
        torch.testing.assert_close(block(features), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("stage", "size"), [(0, 5), (1, 5), (2, 10)])
def test_a_step_to_the_next_stage_by_hand(stage: int, size: int, network: Any) -> None:
    """The last one keeps the resolution."""
    merge = network.layers[stage].downsample
    width = (64, 128, 160)[stage]
    features = torch.randn(1, width, 10, 10, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        inner = functional.gelu(conv_norm(merge.conv1, features))
        inner = functional.gelu(conv_norm(merge.conv2, inner))
        found = merge(features)
        assert found.shape[2:] == (size, size)
        torch.testing.assert_close(found, conv_norm(merge.conv3, inner), rtol=1e-4, atol=1e-4)


def test_the_neck_by_hand(network: Any) -> None:
    """Its norms are over the channels of a place."""
    features = torch.randn(1, 320, 4, 4, generator=torch.Generator().manual_seed(2))
    first, norm, second, last = network.neck

    def normed(module: Any, plane: Tensor) -> Tensor:
        mean, variance = plane.mean(1, keepdim=True), plane.var(1, keepdim=True, unbiased=False)
        scaled = (plane - mean) / (variance + 1e-6).sqrt()
        return scaled * module.weight.view(1, -1, 1, 1) + module.bias.view(1, -1, 1, 1)

    with torch.inference_mode():
        wanted = normed(norm, functional.conv2d(features, first.weight))
        wanted = normed(last, functional.conv2d(wanted, second.weight, padding=1))
        torch.testing.assert_close(network.neck(features), wanted, rtol=1e-4, atol=1e-4)
