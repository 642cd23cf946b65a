"""Torch modules with the inputs and outputs of the memory graphs, around a network with a memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from triton_sam.export.onnx_graph import CONTRIB
from triton_sam.export.wrappers import Decoder
from triton_sam.models.architecture import Architecture
from triton_sam.networks.memory_steps import TorchKernels, point_to_object

#: Logits of an object that is not in the frame.
_NOT_THERE = -1024.0


class VideoDecoder(nn.Module):
    """Embeddings that are conditioned on memories, and prompts -> the mask of each object, and what points to it."""

    def __init__(self, network: Any, architecture: Architecture) -> None:
        super().__init__()
        self.decoder = Decoder(network, architecture)
        self.object_pointer_proj = network.object_pointer_proj
        self.no_object_pointer = network.no_object_pointer
        self.eval()

    def forward(
        self,
        image_embeddings: Tensor,
        high_res_feats_0: Tensor,
        high_res_feats_1: Tensor,
        point_coords: Tensor,
        point_labels: Tensor,
        mask_input: Tensor,
        has_mask_input: Tensor,
        multimask_output: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """
        Args:
            image_embeddings: [N,256,g,g], and features [N,32,4g,4g] and [N,64,2g,2g]; each N is B or 1.
            point_coords, point_labels: as those of :class:`~triton_sam.export.wrappers.Decoder`.
            mask_input: [N,1,4g,4g] logits.
            has_mask_input, multimask_output: [N], 0 or 1: whether the mask counts, and whether the best of three masks
                is chosen, not the single one.

        Returns:
            [B,1,4g,4g] logits, -1024 without the object; [B,1] predicted IoU; [B,1] object scores; [B,256] pointers.
        """
        embeddings = image_embeddings, high_res_feats_0, high_res_feats_1
        decoder = self.decoder
        masks, scores, tokens = decoder.candidates(embeddings, point_coords, point_labels, mask_input, has_mask_input)
        object_scores = decoder.decoder.pred_obj_score_head(tokens[:, 0])
        several = (multimask_output.reshape(-1, 1) > 0.5).to(torch.int64)
        best = (1 + scores[:, 1:].argmax(dim=1, keepdim=True)) * several  # [B,1]; the single mask is number 0
        score = scores.gather(1, best)
        mask = masks.gather(1, best[:, :, None, None].expand(-1, -1, masks.shape[2], masks.shape[3]))
        mask = torch.where(object_scores[:, :, None, None] > 0, mask, _NOT_THERE)
        # The pointer of a single mask is made of its own token even if another mask was more stable.
        own = (decoder.first_mask_token + best).unsqueeze(2).expand(-1, -1, tokens.shape[2])
        return mask, score, object_scores, point_to_object(self, tokens.gather(1, own)[:, 0], object_scores)


class OnnxKernels:
    """:class:`~triton_sam.networks.memory_steps.Kernels` as operators of ONNX Runtime, which keep no scores."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        attended: Tensor = _Attention.apply(queries.expand(keys.shape[0], -1, -1), keys, values)  # type: ignore[no-untyped-call]
        return attended

    def turn(self, channels: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        first = torch.zeros(1, dtype=torch.int64)
        turned: Tensor = _Turns.apply(channels, first, cosines, sines)  # type: ignore[no-untyped-call]
        return turned


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return TorchKernels().attend(queries, keys, values)

    @staticmethod
    def symbolic(graph: Any, queries: Any, keys: Any, values: Any) -> Any:
        made = graph.op(f"{CONTRIB}::MultiHeadAttention", queries, keys, values, num_heads_i=1, scale_f=1.0)
        return made.setType(queries.type().with_sizes([None, None, None]))  # else the exporter warns of it


class _Turns(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, channels: Tensor, _first: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        return TorchKernels().turn(channels, cosines, sines)

    @staticmethod
    def symbolic(graph: Any, channels: Any, first: Any, cosines: Any, sines: Any) -> Any:
        """``first`` is the number of the first row of the tables."""
        made = graph.op(f"{CONTRIB}::RotaryEmbedding", channels, first, cosines, sines, interleaved_i=0)
        return made.setType(channels.type().with_sizes([None, None, None]))
