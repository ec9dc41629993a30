"""The network of the factored policy and its action distribution. Used by ``FactoredPolicy`` alone.

A screen becomes a grid of cell features (each cell on its own), the goal a few attention-pooled vectors, and each cell's look is
matched bilinearly with the words that name the target. The action is factored: a type, then a cell, or a span of goal words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from distrl.plugins.builtin.policy.factored_options import FactoredOptions

CELL = 16
"""Pixels of a cell's side in the network's input."""
MASKED = -1e9
"""A logit that no float32 softmax gives any probability."""
QUERIES = 4
"""Attention-pooled views of the goal."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of B steps."""

    screens: Tensor
    """uint8 [B, rows * 16, columns * 16, 3]."""
    words: Tensor
    """int64 [B, W]: hashed words, 0 where the goal has ended."""
    types: Tensor
    """int64 [B, history]: newest first; 0 none, 1 unknown, else 2 + type."""
    marks: Tensor
    """float [B, 2, cells]: where the newest action tapped, and how often the last ones tapped there."""
    steps: Tensor
    """float [B, 1]: previous actions, in tens."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Outputs for B steps; the first four are log-probabilities that sum to 1 over their last dimension."""

    types: Tensor
    """[B, types]."""
    cells: Tensor
    """[B, cells]: given a tap."""
    starts: Tensor
    """[B, W]: given typing, the span's first word."""
    ends: Tensor
    """[B, W, W]: given the first word, the last one."""
    values: Tensor
    """[B, 2]: logits of the probability of success."""
    trajectory_values: Tensor
    """[B]: logit."""


class FactoredNetwork(nn.Module):
    """0.2 M parameters with the default options."""

    def __init__(self, options: FactoredOptions) -> None:
        super().__init__()
        width, kinds = options.width, len(options.actions)
        self._cells = options.rows * options.columns
        self._type_index = options.actions.index("type") if "type" in options.actions else None
        # No kernel reaches over a cell's edge: what a cell looks like must not depend on its neighbours, or a small
        # number of episodes is remembered by arrangement instead of being understood by look.
        self.stem = nn.Sequential(
            nn.Conv2d(3, 24, 4, stride=4),
            nn.ReLU(),
            nn.Conv2d(24, 48, 2, stride=2),
            nn.ReLU(),
            nn.Conv2d(48, width, 2, stride=2),
            nn.ReLU(),
        )
        self.place = nn.Parameter(torch.randn(self._cells, width) * 0.1)
        self.cell_norm = nn.LayerNorm(width)
        self.name_norm = nn.LayerNorm(width)
        self.name = nn.Linear(32, width)
        self.name_query = nn.Linear(width, 1)
        self.mark = nn.Linear(2, width, bias=False)
        self.word = nn.Embedding(options.buckets, 32, padding_idx=0)
        nn.init.normal_(self.word.weight, std=0.5)
        with torch.no_grad():
            self.word.weight[0].zero_()
        self.word_place = nn.Parameter(torch.randn(options.words, 32) * 0.05)
        self.context = nn.Conv1d(32, width, 3, padding=1)
        self.query = nn.Linear(width, QUERIES)
        self.goal = nn.Linear(QUERIES * width, width)
        self.recent = nn.Linear(options.history * (kinds + 2) + 1, width)
        self.cell_match = nn.Linear(width, width, bias=False)
        self.goal_match = nn.Linear(width, width)
        self.cell_mix = nn.Linear(2 * width, width)
        self.goal_mix = nn.Linear(2 * width, width)
        self.cell_score = nn.Linear(width, 1, bias=False)
        self.trunk = nn.Sequential(nn.Linear(4 * width, 2 * width), nn.ReLU())
        self.type_head = nn.Linear(2 * width, kinds)
        self.start_query = nn.Linear(2 * width, width)
        self.end_query = nn.Linear(2 * width, width)
        self.end_key = nn.Linear(width, width, bias=False)
        self.value_trunk = nn.Sequential(nn.Linear(4 * width, 2 * width), nn.ReLU())
        self.value_head = nn.Linear(2 * width, 3)
        self._kinds = kinds
        self.register_buffer(
            "order", torch.ones(options.words, options.words, dtype=torch.bool).tril(-1), persistent=False
        )
        self.order: Tensor

    def forward(self, batch: Batch) -> Heads:
        """Raises nothing of its own; shapes are those of ``Batch``."""
        size = batch.words.shape[0]
        present = batch.words > 0
        words = self.word(batch.words) + self.word_place * present.unsqueeze(-1)
        context = functional.relu(self.context(words.transpose(1, 2)).transpose(1, 2))  # [B, W, width]
        attention = self.query(context).masked_fill(~present.unsqueeze(-1), MASKED).softmax(dim=1)  # [B, W, Q]
        goal = functional.relu(self.goal(torch.einsum("bwq,bwd->bqd", attention, context).reshape(size, -1)))
        recent = torch.cat(
            [functional.one_hot(batch.types, self._kinds + 2).flatten(1).to(goal.dtype), batch.steps], dim=1
        )
        state = torch.cat([goal, functional.relu(self.recent(recent))], dim=1)  # [B, 2 * width]

        pixels = batch.screens.permute(0, 3, 1, 2).to(goal.dtype) / 127.5 - 1.0
        looks = self.cell_norm(self.stem(pixels).flatten(2).transpose(1, 2))
        # Which words name the target is read off their context; what they mean, off the words alone.
        picked = self.name_query(context).masked_fill(~present.unsqueeze(-1), MASKED).softmax(dim=1)
        named = self.name_norm((picked * self.name(words)).sum(dim=1))
        cells = looks + self.place + self.mark(batch.marks.transpose(1, 2))
        matched = self.cell_match(looks) * self.goal_match(named).unsqueeze(1)
        mixed = functional.relu(self.cell_mix(torch.cat([cells, matched], dim=2)) + self.goal_mix(state).unsqueeze(1))
        cell_logits = self.cell_score(mixed).squeeze(2) + matched.sum(dim=2) / 8
        seen = torch.cat([state, mixed.mean(dim=1), mixed.amax(dim=1)], dim=1)

        trunk = self.trunk(seen)
        types = self.type_head(trunk)
        if self._type_index is not None:
            # Without a word in the goal there is nothing to type.
            blocked = functional.one_hot(torch.tensor(self._type_index), self._kinds).bool()
            types = types.masked_fill(blocked & ~present.any(dim=1, keepdim=True), MASKED)
        scale = context.shape[2] ** -0.5
        starts = torch.einsum("bd,bwd->bw", self.start_query(trunk), context) * scale
        keys = self.end_query(trunk).unsqueeze(1) + self.end_key(context)
        ends = torch.einsum("bsd,bwd->bsw", keys, context) * scale
        values = self.value_head(self.value_trunk(seen))
        return Heads(
            types=types.log_softmax(dim=1),
            cells=cell_logits.log_softmax(dim=1),
            starts=starts.masked_fill(~present, MASKED).log_softmax(dim=1),
            ends=ends.masked_fill(self.order | ~present.unsqueeze(1), MASKED).log_softmax(dim=2),
            values=values[:, :2],
            trajectory_values=values[:, 2],
        )


def entropy_of(log_probs: Tensor) -> Tensor:
    """Entropy over the last dimension, in nats."""
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def joint_entropy(heads: Heads, tap: int | None, typing: int | None) -> Tensor:
    """Entropy [B] of the whole action: ``H(type) + sum_type p(type) H(arguments | type)``, exact by the chain rule.

    ``tap`` and ``typing`` are the indices of the two types that have arguments; ``None`` if the policy lacks one.
    """
    total = entropy_of(heads.types)
    if tap is not None:
        total = total + heads.types[:, tap].exp() * entropy_of(heads.cells)
    if typing is not None:
        span = entropy_of(heads.starts) + (heads.starts.exp() * entropy_of(heads.ends)).sum(dim=1)
        total = total + heads.types[:, typing].exp() * span
    return total
