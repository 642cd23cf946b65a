"""Pairs targets with queries, for many concepts at once on the device."""

from __future__ import annotations

import torch
from torch import Tensor

#: How far the sum of a concept's costs may be above the least, for each target. Rounds enough for nearly all; their
#: number is fixed, because to look whether anybody still bids would be to wait for the device.
STEP, _ROUNDS = 0.02, 72


@torch.no_grad()
def match_one(cost: Tensor, valid: Tensor) -> Tensor:
    """One query for each target, none twice, at nearly the least cost: an auction in which all bid at once.

    Args:
        cost: [P,T,Q], T at most Q.
        valid: [P,T], which targets there are.

    Returns:
        [P,T] queries; -1 without a target, and for the few that are still bidding at the end.
    """
    problems, targets, queries = cost.shape
    device = cost.device
    worth = -cost.float()
    lowest = torch.finfo(torch.float32).min
    price = torch.zeros(problems, queries, device=device)
    # One more column takes what belongs to nobody.
    owner = torch.full((problems, queries), targets, device=device)
    taken = torch.full((problems, targets + 1), -1, device=device)
    numbers = torch.arange(queries, device=device).expand(problems, -1)
    for _ in range(_ROUNDS):
        bidding = valid & (taken[:, :targets] < 0)
        net = worth - price[:, None]
        best, chosen = net.max(2, keepdim=True)
        second = net.scatter(2, chosen, lowest).amax(2, keepdim=True)
        offer = price.gather(1, chosen[..., 0])[..., None] + best - second + STEP
        offer = torch.where(bidding[..., None], offer, lowest)
        offers = torch.full_like(net, lowest).scatter(2, chosen, offer)
        highest, winner = offers.max(1)  # [P,Q]
        sold = highest > lowest
        price = torch.where(sold, highest, price)
        taken = taken.scatter(1, torch.where(sold, owner, targets), -1)
        taken = taken.scatter(1, torch.where(sold, winner, targets), numbers)
        owner = torch.where(sold, winner, owner)
    return taken[:, :targets].masked_fill(~valid, -1)


@torch.no_grad()
def match_many(cost: Tensor, valid: Tensor, most: int) -> Tensor:
    """Several of the best queries for each target; a query that two targets want goes to the one that it costs less.

    Args:
        cost, valid: as in :func:`match_one`.
        most: queries of a target; fewer where there are many targets.

    Returns:
        [P,Q] targets; -1 without one.
    """
    queries = cost.shape[2]
    cost = cost.masked_fill(~valid[..., None], torch.inf)
    several = (queries // (2 * valid.sum(1).clamp(min=1))).clamp(1, most)  # [P]
    ordered, _ = cost.topk(most, dim=2, largest=False)
    limit = ordered.gather(2, (several - 1)[:, None, None].expand(-1, cost.shape[1], 1))
    wanted = (cost <= limit) & valid[..., None]
    least, target = cost.masked_fill(~wanted, torch.inf).min(1)
    return torch.where(least.isfinite(), target, -1)
