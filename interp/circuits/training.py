"""A two-layer model of attention alone, trained on rows that repeat: how induction comes about.

What a model learns depends on what else would do, so rows are made in a certain way:

- Each row has *a period of its own*. With one period for all, it is enough to look as far back
  as the period says, whatever the tokens (`fixed`, a control; Kawata et al. 2025,
  arXiv 2512.18634).
- Most rows repeat themselves from their first token on, again and again: nearly every next
  token is there to be looked up, which is what makes the circuit form soon. But whatever is
  looked up is then near the beginning, and a head that looks one token back has no reason to do
  so later. So some rows start *late*: they go on with new tokens for a while, and repeat the last
  few of them at least once.

      BOS a b c d  a b c d  a b c d ...          period 4, start 4
      BOS a b c d e f g h i  g h i  g ...        period 3, start 9: late

- Rows that never repeat (`none`, the other control) give no head anything to look up.

Everything is drawn from generators of its own, so a run is its `Recipe`, and a run that goes on
from its `state` is the run that never stopped, bit for bit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn

from interp.errors import InputError, is_number, whole, whole_seed
from interp.kinds.kind import LABELS, kinds_of
from interp.kinds.probes import Probe, repeated
from interp.kinds.scores import Thresholds, ask, score_layer

PERIODS = ("varying", "fixed", "none")
"""What distance rows repeat at: each its own, all the same, or not at all."""

BOS = 0
"""The id that opens every row; all others are ordinary tokens."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that a run depends on.

    Attributes:
        period: How rows repeat.
        seed: Of the first weights and of the rows.
        vocabulary: Ordinary tokens, ids 1 to this.
        length: Tokens in a row, BOS included; the model's context.
        least: The shortest period, in tokens.
        most: The longest, at most half of a row.
        only: The one period where it is fixed.
        late: Share of the rows that start late.
        rows: In a step.
        width: Of the residual stream.
        heads: In each of the two layers.
        rate: Learning rate of AdamW once warm.
        warm_up: Steps in which the rate rises to that, along a line.
        decay: Weight decay.

    Raises:
        InputError: If one of them is not what it should be.
    """

    period: str = "varying"
    seed: int = 0
    vocabulary: int = 128
    length: int = 65
    least: int = 8
    most: int = 32
    only: int = 20
    late: float = 0.25
    rows: int = 32
    width: int = 64
    heads: int = 4
    rate: float = 3e-3
    warm_up: int = 100
    decay: float = 0.01

    def __post_init__(self) -> None:
        if self.period not in PERIODS:
            raise InputError(f"period must be one of {', '.join(PERIODS)}, got {self.period!r}")
        whole_seed(self.seed)
        whole("length", self.length, least=18)
        whole("vocabulary", self.vocabulary, least=self.length - 1)
        whole("least", self.least, least=2)
        whole("most", self.most, least=self.least, most=(self.length - 1) // 2)
        whole("only", self.only, least=2, most=(self.length - 1) // 2)
        whole("rows", self.rows, least=1)
        if not is_number(self.late) or not 0 <= self.late <= 1:
            raise InputError(f"late must be in [0, 1], got {self.late!r}")
        if not is_number(self.rate) or not self.rate > 0:
            raise InputError(f"rate must be a number above 0, got {self.rate!r}")
        whole("warm_up", self.warm_up, least=1)
        if not is_number(self.decay) or not self.decay >= 0:
            raise InputError(f"decay must be a number of at least 0, got {self.decay!r}")
        if whole("width", self.width, least=1) % whole("heads", self.heads, least=1):
            raise InputError(f"width must be a multiple of heads, {self.heads}, got {self.width}")


LOOK_EVERY = 25
"""Steps between one look at a model and the next."""

SAVE_EVERY = 100
"""Steps between one checkpoint and the next; a multiple of `LOOK_EVERY`."""


def draw_rows(recipe: Recipe, number: int, luck: Generator) -> Probe:
    """Rows as the recipe says: BOS, tokens that differ, and from some place on the last few again.

    Of a row's tokens t, the one at place i, BOS not counted, is new before the start s, and
    `t[i - d]` from there on, where d is the period. In a late row s is drawn first, then d from
    the periods that fit twice: before s and behind it. In the others s is d. All draws are even.
    The queries before the start are the part `random`, all later ones the part `repeated`;
    `periods` is empty where nothing repeats.
    """

    def between(
        least: int, most: int | Int[Tensor, "row 1"], share: Float[Tensor, "row 1"]
    ) -> Int[Tensor, "row 1"]:
        return least + (share * (most - least + 1)).long()

    body = recipe.length - 1
    place = torch.arange(body)
    # The order of random numbers: new tokens without replacement, for all rows at once.
    new = (
        torch.rand(number, recipe.vocabulary, dtype=torch.float32, generator=luck).argsort(-1)[
            :, :body
        ]
        + 1
    )
    # Three numbers a row, used or not, so that the controls are drawn alike.
    is_late, where, how_long = torch.rand(3, number, 1, dtype=torch.float32, generator=luck)
    late = is_late < recipe.late
    start = between(recipe.least, body - recipe.least, where)
    longest = torch.where(late, torch.minimum(start, body - start), body).clamp(max=recipe.most)
    period = between(recipe.least, longest, how_long)
    if recipe.period == "fixed":
        period = torch.full_like(period, recipe.only)
        start = between(recipe.only, body - recipe.only, where)
    start = torch.where(late, start, period)
    if recipe.period == "none":
        start = torch.full_like(start, body)
    source = start - period + (place - start) % period
    tokens = new.gather(1, torch.where(place < start, place, source))
    tokens = torch.cat([torch.full((number, 1), BOS), tokens], dim=1)
    before = torch.arange(recipe.length) <= start
    periods = () if recipe.period == "none" else tuple(period.flatten().tolist())
    return Probe(tokens, {"random": before, "repeated": ~before}, periods)


class Run:
    """A model in training, with the looks taken at it on the way.

    Args:
        model: Called as transformers' models are, and returning what they return; its weights
            are changed in place, those that ask for no gradient excepted.
        recipe: What it is trained on, and how.

    Attributes:
        step: How many steps it has been trained for.
        looks: What `look` saw, in order.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self.model, self.recipe = model, recipe
        self.step = 0
        self.looks: list[dict[str, Any]] = []
        self._luck = Generator().manual_seed(recipe.seed)
        self._learning = [weight for weight in model.parameters() if weight.requires_grad]
        self._optimiser = torch.optim.AdamW(
            self._learning, lr=recipe.rate, betas=(0.9, 0.98), weight_decay=recipe.decay, fused=True
        )
        self._probes = _Probes(recipe)

    def advance(self) -> None:
        """One step of AdamW on fresh rows, for the loss on every next token."""
        recipe = self.recipe
        rate = recipe.rate * min(1, (self.step + 1) / recipe.warm_up)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        tokens = draw_rows(recipe, recipe.rows, self._luck).tokens
        loss = next_token_losses(self.model, tokens).mean()
        if not loss.isfinite():
            raise InputError(f"rate must be one that does not diverge, got {recipe.rate}")
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        self.step += 1

    def look(self) -> None:
        """Take down losses and every head's scores as they are now; twice at a step is once."""
        if not self.looks or self.looks[-1]["step"] != self.step:
            self.looks.append({"step": self.step, **self._probes.look(self.model)})

    def state(self) -> dict[str, Tensor]:
        """All numbers that the next step depends on: weights, optimiser, luck, step."""
        kept = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for index, moments in self._optimiser.state_dict()["state"].items():
            kept |= {f"optimiser.{index}.{name}": value for name, value in moments.items()}
        kept |= {"luck": self._luck.get_state(), "step": torch.tensor(self.step)}
        return {name: value.detach().clone() for name, value in kept.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to where `state` was taken; `looks` are the caller's.

        Raises:
            InputError: If it is not all of the state of such a run.
        """
        step = int(state["step"]) if "step" in state else -1
        if step < 0:
            raise InputError(f"step must be at least 0, got {step if 'step' in state else 'none'}")
        for name, like in self._expected(step).items():
            value = state.get(name)
            if value is None or (value.shape, value.dtype) != (like.shape, like.dtype):
                told = "none" if value is None else f"{value.dtype} {list(value.shape)}"
                raise InputError(f"{name} must be {like.dtype} {list(like.shape)}, got {told}")
        weights, moments = {}, {}
        for name, value in state.items():
            group, _, rest = name.partition(".")
            if group == "model":
                weights[rest] = value
            elif group == "optimiser":
                index, _, moment = rest.partition(".")
                moments.setdefault(int(index), {})[moment] = value.clone()
        self._luck.set_state(state["luck"])
        self.model.load_state_dict(weights)
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self.step = step

    def _expected(self, step: int) -> dict[str, Tensor]:
        """Tensors like those of this run's state at a step."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for index, weight in enumerate(self._learning if step else []):
            found[f"optimiser.{index}.step"] = torch.zeros(())
            found |= {f"optimiser.{index}.{name}": weight for name in ("exp_avg", "exp_avg_sq")}
        return {**found, "luck": self._luck.get_state(), "step": torch.tensor(0)}


def next_token_losses(
    model: nn.Module, tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch query"]:
    """The loss of each next token, in nats; the last position has none."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    guesses = rearrange(logits, "batch query id -> (batch query) id")
    lost = nn.functional.cross_entropy(guesses, tokens[:, 1:].flatten(), reduction="none")
    return rearrange(lost, "(batch query) -> batch query", batch=len(tokens))


class _Probes:
    """What is looked at on the way: rows that are drawn once, and never trained on."""

    def __init__(self, recipe: Recipe) -> None:
        seed = recipe.seed + 1
        ids = torch.arange(1, recipe.vocabulary + 1)
        given: dict[str, Any] = {"length": recipe.length, "bos": BOS, "seed": seed}
        self.own = draw_rows(recipe, 64, Generator().manual_seed(seed))
        self.every = repeated(ids, rows=16, **given)
        # Longer than the longest too, as far as most of a second copy has room.
        longest = (recipe.length - 1) * 5 // 8
        self.at = {d: repeated(ids, rows=16, period=d, **given) for d in range(4, longest + 1, 4)}
        self.thresholds = Thresholds()
        self.questions = {
            part: ask(
                self.every.tokens,
                counted=self.every.parts[part],
                special=(BOS,),
                thresholds=self.thresholds,
                kinds=[k for k, kind in kinds_of(True).items() if kind.idle == (part == "random")],
                statistics=False,
            )
            for part in ("repeated", "random")
        }

    @torch.no_grad()
    def look(self, model: nn.Module) -> dict[str, Any]:
        found: dict[str, Any] = copy_losses(model, self.own)
        found["by_period"] = {
            str(period): copy_losses(model, probe)["second_copy"]
            for period, probe in self.at.items()
        }
        seen = model(input_ids=self.every.tokens, use_cache=False, output_attentions=True)
        scores: dict[str, list[list[float]]] = {kind: [] for kind in LABELS}
        for pattern in seen.attentions:
            for questions in self.questions.values():
                tallies = score_layer(pattern, questions, self.thresholds).tallies
                for kind, tally in tallies.items():
                    scores[kind].append([round(mean, 4) for mean in tally.mean.tolist()])
        return {**found, "scores": scores}


@torch.no_grad()
def copy_losses(model: nn.Module, probe: Probe) -> dict[str, float | None]:
    """Mean loss in nats a token, on new tokens and on what can be looked up.

    `first_copy` is over the queries whose next token is new, as they are themselves;
    `second_copy` over those that are repeats, and whose next token is one too, as in
    `interp.effects.ablate.losses`. None where there are no such queries.
    """
    lost = next_token_losses(model, probe.tokens)
    found = {}
    for name, part in (("second_copy", "repeated"), ("first_copy", "random")):
        queries: Bool[Tensor, "row pos"] = probe.parts[part]
        counted = queries[:, :-1] & queries[:, 1:]
        mean = lost[counted].mean().item()
        found[name] = None if math.isnan(mean) else round(mean, 4)
    return found
