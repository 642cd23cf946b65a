"""Torch modules with the inputs and outputs of the raw-tensor contract, around a network of ``triton_sam.networks``.

They are what is exported: one becomes the encoder's graph, the other the decoder's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.export.two_way_transformer import norm_over_channels, run_two_way_transformer
from triton_sam.models.architecture import Architecture, Backbone
from triton_sam.networks.segmenters import normalisation

_NOT_A_POINT = -1
_BOX_CORNERS = (2, 3)


class Encoder(nn.Module):
    """Pixels [N,3,S,S] in [0,1] -> embedding [N,256,g,g] and, if the network has them, two finer features.

    SAM 3's outputs are numbered from finest to coarsest; the others begin with the embedding. The last output of a
    network that finds concepts is what its detector reads, [N,C,g,g].
    """

    mean: Tensor
    std: Tensor
    positions: Tensor | None

    def __init__(self, network: Any, architecture: Architecture) -> None:
        super().__init__()
        self.network = network
        self.has_features = architecture.backbone in (Backbone.HIERA, Backbone.PERCEPTION)
        self.fine_first = architecture.backbone is Backbone.PERCEPTION
        mean, std = normalisation(architecture)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        positions = None
        if architecture.backbone is Backbone.HIERA:
            trunk = network.vision_encoder.backbone
            positions = trunk._get_pos_embed(tuple(size // 4 for size in trunk.config.image_size))
        self.register_buffer("positions", positions, persistent=False)
        self.eval()  # the exporter leaves a module, and with it the network, in the mode it was in

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        pixels = (image - self.mean) / self.std
        if not self.has_features:
            embedding: Tensor = self.network.vision_encoder(pixels).last_hidden_state
            return (embedding,)
        kept: list[Tensor] = []
        with self._known_positions(), self._keeping_features(kept):
            finest, finer, coarse = self.network.get_image_embeddings(pixels)
        return (finest, finer, coarse, *kept) if self.fine_first else (coarse, finest, finer, *kept)

    @contextlib.contextmanager
    def _keeping_features(self, kept: list[Tensor]) -> Iterator[None]:
        """Appends what the detector reads, if there is one, to ``kept``."""
        if not hasattr(self.network, "concepts"):
            yield
            return

        def keep(_module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
            state = output.last_hidden_state.transpose(1, 2)  # [N,C,g*g]
            grid = self.network.concepts.grid
            kept.append(state.reshape(*state.shape[:2], grid, grid))

        hook = self.network.vision_encoder.backbone.register_forward_hook(keep)
        try:
            yield
        finally:
            hook.remove()

    @contextlib.contextmanager
    def _known_positions(self) -> Iterator[None]:
        """Uses the stored positions: Hiera interpolates its small table for every image, a seventh of an encode."""
        if self.positions is None:
            yield
            return
        trunk = self.network.vision_encoder.backbone
        trunk._get_pos_embed = lambda _: self.positions
        try:
            yield
        finally:
            del trunk._get_pos_embed


class Decoder(nn.Module):
    """Embeddings and prompts -> masks and scores.

    Every input except the embedding and the points has a default. Rows: B prompts; embeddings, features and masks have
    B rows or one for all.
    """

    positions: Tensor

    def __init__(self, network: Any, architecture: Architecture) -> None:
        super().__init__()
        self.prompt_encoder = network.prompt_encoder
        self.decoder = network.mask_decoder
        self.has_features = architecture.backbone in (Backbone.HIERA, Backbone.PERCEPTION)
        positions = network.get_image_wide_positional_embeddings()  # [1,C,g,g]
        self.register_buffer("positions", positions.flatten(2).transpose(1, 2).contiguous(), persistent=False)
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
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            image_embeddings: [N,256,g,g], N is B or 1.
            high_res_feats_0, high_res_feats_1: [N,32,4g,4g] and [N,64,2g,2g]; unused if the network has none.
            point_coords, point_labels: [B,P,2] model pixels and [B,P]: 1 object, 0 background, 2 and 3 the corners of a
                box, -1 nothing.
            mask_input, has_mask_input: [N,1,4g,4g] logits, and [N] 0 or 1.
            multimask_output: [1], 0 or 1.

        Returns:
            [B,M,4g,4g] logits and [B,M] predicted IoU; M is 3 with ``multimask_output``, else 1.
        """
        embeddings = image_embeddings, high_res_feats_0, high_res_feats_1
        masks, scores, _ = self.candidates(embeddings, point_coords, point_labels, mask_input, has_mask_input)
        start = (multimask_output[0] > 0.5).to(torch.int64)
        end = 1 + start * (self.decoder.num_mask_tokens - 1)
        return masks[:, start:end], scores[:, start:end]

    def candidates(
        self,
        embeddings: tuple[Tensor, Tensor, Tensor],
        point_coords: Tensor,
        point_labels: Tensor,
        mask_input: Tensor,
        has_mask_input: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[B,4,4g,4g] logits, [B,4] predicted IoU, and the [B,T,256] tokens from which they were made.

        The single mask comes first. Arguments as in ``forward``.
        """
        image_embeddings, high_res_feats_0, high_res_feats_1 = embeddings
        rows = point_coords.shape[0]
        tokens = self._tokens(point_coords, point_labels)
        source = (image_embeddings + self._dense(mask_input, has_mask_input)).expand(rows, -1, -1, -1)
        image = source.flatten(2).transpose(1, 2)
        tokens, image = run_two_way_transformer(self.decoder.transformer, tokens, image, self.positions)
        count = self.decoder.num_mask_tokens
        first = self.first_mask_token
        upscaled = self._upscale(image, source, high_res_feats_0, high_res_feats_1)
        weights = torch.stack(
            [mlp(tokens[:, first + index]) for index, mlp in enumerate(self.decoder.output_hypernetworks_mlps)],
            dim=1,
        )
        masks = (weights @ upscaled.flatten(2)).reshape(rows, count, upscaled.shape[2], upscaled.shape[3])
        scores = self.decoder.iou_prediction_head(tokens[:, first - 1])
        return *self._with_stable_single(masks, scores), tokens

    @property
    def first_mask_token(self) -> int:
        """The token of the single mask; that of the object score, if there is one, and that of the IoU come first."""
        return 2 if self.has_features else 1

    def _tokens(self, coords: Tensor, labels: Tensor) -> Tensor:
        """[B,T,256]: the output tokens, then one for each point and each padding point of the reference."""
        rows, points = labels.shape[0], labels.shape[1]
        padding = 2
        coords = functional.pad(coords, (0, 0, 0, padding))
        labels = functional.pad(labels, (0, padding), value=float(_NOT_A_POINT))
        kept = points + self._padding_points(labels[:, :points])
        coords, labels = coords[:, :kept], labels[:, :kept]
        sparse = self._embed_points(coords.unsqueeze(1), labels.unsqueeze(1))[:, 0]
        decoder = self.decoder
        own = [decoder.iou_token.weight, decoder.mask_tokens.weight]
        if self.has_features:
            own.insert(0, decoder.obj_score_token.weight)
        output_tokens = torch.cat(own).unsqueeze(0).expand(rows, -1, -1)
        return torch.cat([output_tokens, sparse], dim=1)

    def _padding_points(self, labels: Tensor) -> Tensor:
        """The number of "not a point" tokens that the reference adds to these prompts.

        SAM 1 adds one to points without a box (and none if the caller has done so). SAM 2 and 3 always add one, and a
        second one if there are no points at all.
        """
        none_given = torch.tensor(labels.shape[1]) == 0
        if self.has_features:
            return 1 + none_given.to(torch.int64)
        settled = (labels == _NOT_A_POINT) | (labels == _BOX_CORNERS[0]) | (labels == _BOX_CORNERS[1])
        return 1 - (settled.sum() > 0).to(torch.int64) * (~none_given).to(torch.int64) - none_given.to(torch.int64)

    def _embed_points(self, coords: Tensor, labels: Tensor) -> Tensor:
        encoder = self.prompt_encoder
        if self.has_features:
            embedded: Tensor = encoder._embed_points(coords, labels.to(torch.int64), pad=False)
            return embedded
        embedded = encoder._embed_points(coords, labels, pad=False)
        for corner in _BOX_CORNERS:  # transformers' SAM 1 embeds boxes in another method
            embedded = embedded + (labels == corner).unsqueeze(-1) * encoder.point_embed[corner].weight
        return embedded

    def _dense(self, mask_input: Tensor, has_mask_input: Tensor) -> Tensor:
        given = has_mask_input.reshape(-1, 1, 1, 1) > 0.5
        nothing = self.prompt_encoder.no_mask_embed.weight.reshape(1, -1, 1, 1)
        return torch.where(given, self.prompt_encoder.mask_embed(mask_input), nothing)

    def _upscale(self, image: Tensor, source: Tensor, finest: Tensor, finer: Tensor) -> Tensor:
        decoder = self.decoder
        image = image.transpose(1, 2).reshape(source.shape)
        upscaled = decoder.upscale_conv1(image)
        upscaled = norm_over_channels(decoder.upscale_layer_norm, upscaled + finer if self.has_features else upscaled)
        upscaled = decoder.upscale_conv2(functional.gelu(upscaled))
        return functional.gelu(upscaled + finest if self.has_features else upscaled)

    def _with_stable_single(self, masks: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Replaces a single mask that is not stable by the best of the others."""
        if not self.has_features or not self.decoder.dynamic_multimask_via_stability:
            return masks, scores
        stable, score = self.decoder._dynamic_multimask_via_stability(masks.unsqueeze(1), scores.unsqueeze(1))
        return torch.cat([stable[:, 0], masks[:, 1:]], dim=1), torch.cat([score[:, 0], scores[:, 1:]], dim=1)
