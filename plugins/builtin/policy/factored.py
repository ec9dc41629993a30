"""The policy ``factored``: small enough to act in milliseconds and to learn on one core.

Collector nodes call ``act``; the learner calls ``evaluate``, ``encode_action`` and reads the parameters. Screens of any size are
brought down to a fixed grid of cells, so a screen is stored once, small, by ``reduce``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from distrl.core.contracts.observation import Screenshot
from distrl.core.contracts.policy import PolicyAction, PolicyEvaluation, PolicyInput
from distrl.core.contracts.role import RoleContext
from distrl.core.errors import PolicyError, WeightsError
from distrl.plugins.builtin.image import rgb
from distrl.plugins.builtin.policy.encoding import Goal, decode, encode, read_goal, read_history
from distrl.plugins.builtin.policy.factored_options import FactoredOptions
from distrl.plugins.builtin.policy.network import CELL, Batch, FactoredNetwork, Heads, joint_entropy

RAW = "image/x-rgb"


class FactoredPolicy:
    """See the module. Weights start from the run's seed: the same in every node; sampling from the context's random numbers."""

    name = "factored"
    base_model = ""

    def __init__(self, options: FactoredOptions, context: RoleContext) -> None:
        torch.set_num_threads(1)  # processes share the cores; threads of several would fight for them
        self._options = options
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.seed)
            self._network = FactoredNetwork(options)
        self._generator = torch.Generator().manual_seed(context.random.getrandbits(63))
        actions: tuple[str, ...] = options.actions
        self._tap = actions.index("tap") if "tap" in actions else None
        self._typing = actions.index("type") if "type" in actions else None

    @property
    def sampling(self) -> Mapping[str, float]:
        return {"temperature": 1.0}

    def parameters(self) -> Iterator[nn.Parameter]:
        """Every weight is trained."""
        return self._network.parameters()

    # --- acting ---------------------------------------------------------------------------------

    def act(self, batch: Sequence[PolicyInput], *, greedy: bool = False) -> Sequence[PolicyAction]:
        """Sample one action for each input; greedy takes the most probable factor after factor. Raises ``PolicyError``
        for an input without a screenshot."""
        if not batch:
            return []
        goals = [read_goal(item.goal, self._options) for item in batch]
        with torch.no_grad():
            heads = self._network(self._tensors(batch, goals))
            entropies = joint_entropy(heads, self._tap, self._typing).tolist()
            values = heads.values.amin(dim=1).sigmoid().tolist()
            chosen = [self._choose(heads, row, greedy) for row in range(len(batch))]
        return [
            PolicyAction(
                action=decode(goal, tokens, self._options),
                tokens=tokens,
                token_log_probs=log_probs,
                entropy=entropy,
                value=value,
            )
            for goal, (tokens, log_probs), entropy, value in zip(goals, chosen, entropies, values, strict=True)
        ]

    def _choose(self, heads: Heads, row: int, greedy: bool) -> tuple[tuple[int, ...], tuple[float, ...]]:
        tokens: list[int] = []
        log_probs: list[float] = []

        def pick(distribution: Tensor) -> int:
            if greedy:
                token = int(distribution.argmax())
            else:
                token = int(torch.multinomial(distribution.exp(), 1, generator=self._generator))
            tokens.append(token)
            log_probs.append(float(distribution[token]))
            return token

        kind = pick(heads.types[row])
        if kind == self._tap:
            pick(heads.cells[row])
        elif kind == self._typing:
            pick(heads.ends[row, pick(heads.starts[row])])
        return tuple(tokens), tuple(log_probs)

    # --- learning -------------------------------------------------------------------------------

    def evaluate(self, batch: Sequence[PolicyInput], tokens: Sequence[Sequence[int]]) -> PolicyEvaluation:
        """See ``TrainablePolicy``. Raises ``PolicyError`` for tokens that are no action of this policy on that goal."""
        goals = [read_goal(item.goal, self._options) for item in batch]
        for goal, action in zip(goals, tokens, strict=True):
            self._check_tokens(goal, action)
        heads = self._network(self._tensors(batch, goals))
        rows = torch.arange(len(batch))
        columns = [
            torch.tensor([action[place] if place < len(action) else 0 for action in tokens], dtype=torch.int64)
            for place in range(3)
        ]
        log_probs = heads.types[rows, columns[0]]
        taps = columns[0] == (-1 if self._tap is None else self._tap)
        types = columns[0] == (-1 if self._typing is None else self._typing)
        # A factor that the type does not use may be masked to a huge negative number: select, never multiply by 0.
        cell = torch.where(taps, columns[1], 0)
        first, last = torch.where(types, columns[1], 0), torch.where(types, columns[2], 0)
        log_probs = log_probs + torch.where(taps, heads.cells[rows, cell], 0.0)
        span = heads.starts[rows, first] + heads.ends[rows, first, last]
        log_probs = log_probs + torch.where(types, span, 0.0)
        return PolicyEvaluation(
            log_probs=log_probs,
            entropies=joint_entropy(heads, self._tap, self._typing),
            values=heads.values,
            trajectory_values=heads.trajectory_values,
        )

    def encode_action(self, item: PolicyInput, action: str) -> tuple[int, ...] | None:
        """A tap becomes its cell, typed text the first span of the goal that reads so; ``None`` if there is none."""
        return encode(read_goal(item.goal, self._options), action, self._options)

    def reduce(self, screenshot: Screenshot) -> Screenshot:
        """All that the policy sees of a screenshot: raw RGB, 16 x 16 pixels a cell, averaged. Idempotent."""
        width, height = self._options.columns * CELL, self._options.rows * CELL
        if screenshot.media_type == RAW and (screenshot.width, screenshot.height) == (width, height):
            return screenshot
        pixels = rgb(screenshot)
        if pixels.shape[:2] != (height, width):
            pixels = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX))
        return Screenshot(width, height, pixels.tobytes(), RAW)

    # --- weights --------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write the weights, with the architecture's options in the file's metadata."""
        weights = {name: value.detach().contiguous() for name, value in self._network.state_dict().items()}
        save_file(weights, path, metadata={"policy": self.name, "options": self._architecture()})

    def load(self, path: Path) -> None:
        """See ``Policy``. Names, shapes and options must be the same; raises ``WeightsError`` otherwise."""
        own = self._network.state_dict()
        try:
            with safe_open(path, framework="pt") as file:
                metadata: dict[str, str] = file.metadata() or {}
                names = set(file.keys())
                loaded: dict[str, Tensor] = {name: file.get_tensor(name) for name in names & own.keys()}
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path} holds no readable weights: {error}") from error
        if names != own.keys():
            missing, unknown = sorted(own.keys() - names), sorted(names - own.keys())
            raise WeightsError(f"{path} does not fit the policy factored: missing {missing[:3]}, unknown {unknown[:3]}")
        for name, value in loaded.items():
            if value.shape != own[name].shape or value.dtype != own[name].dtype:
                raise WeightsError(
                    f"{path}: {name} is {value.dtype} {tuple(value.shape)}, the policy has {own[name].dtype} {tuple(own[name].shape)}"
                )
            if not bool(torch.isfinite(value).all()):
                raise WeightsError(f"{path}: {name} holds numbers that are not finite")
        if metadata.get("options") != self._architecture():
            raise WeightsError(f"{path} was written by a policy with other options: {metadata.get('options')}")
        self._network.load_state_dict(loaded)

    def _architecture(self) -> str:
        return json.dumps(self._options.model_dump(), sort_keys=True)

    # --- inputs ---------------------------------------------------------------------------------

    def _tensors(self, batch: Sequence[PolicyInput], goals: Sequence[Goal]) -> Batch:
        options = self._options
        cells = options.rows * options.columns
        words = np.zeros((len(batch), options.words), dtype=np.int64)
        types = np.zeros((len(batch), options.history), dtype=np.int64)
        marks = np.zeros((len(batch), 2, cells), dtype=np.float32)
        steps = np.zeros((len(batch), 1), dtype=np.float32)
        for row, (item, goal) in enumerate(zip(batch, goals, strict=True)):
            words[row, : len(goal.ids)] = goal.ids
            history = read_history(item.previous_actions, options)
            types[row] = history.types
            steps[row] = history.steps / 10
            if history.cells[0] >= 0:
                marks[row, 0, history.cells[0]] = 1.0
            for cell in history.cells:
                if cell >= 0:
                    marks[row, 1, cell] += 0.5
        screens = np.stack([self._pixels(item) for item in batch])
        return Batch(*(torch.from_numpy(array) for array in (screens, words, types, marks, steps)))

    def _pixels(self, item: PolicyInput) -> npt.NDArray[np.uint8]:
        screenshot = item.observation.screenshot
        if screenshot is None:
            raise PolicyError("the policy factored needs a screenshot: the device gave an observation without one")
        reduced = self.reduce(screenshot)
        return np.frombuffer(reduced.data, dtype=np.uint8).reshape(reduced.height, reduced.width, 3)

    def _check_tokens(self, goal: Goal, tokens: Sequence[int]) -> None:
        options = self._options
        kind = tokens[0] if tokens else -1
        fits = 0 <= kind < len(options.actions)
        if fits and kind == self._tap:
            fits = len(tokens) == 2 and 0 <= tokens[1] < options.rows * options.columns
        elif fits and kind == self._typing:
            fits = len(tokens) == 3 and 0 <= tokens[1] <= tokens[2] < len(goal.ids)
        elif fits:
            fits = len(tokens) == 1
        if not fits:
            raise PolicyError(f"tokens {tuple(tokens)} are no action of the policy factored on the goal {goal.text!r}")
