"""A two-layer model of attention alone, trained on rows that repeat: how induction is learned.

The model learns whatever lowers the loss, so the rows rule out everything but induction:

- Each row has *its own period*. With one period for all, it is enough to look back by that
  period, whatever the tokens (`fixed`, a control; Kawata et al. 2025, arXiv 2512.18634).
- Most rows repeat from their first token on, again and again: nearly every next token can be
  looked up, which lets the circuit form soon. But all targets are then near the beginning, and a
  head that looks one token back has no reason to do so later. So some rows start *late*: they
  go on with new tokens for a while, and repeat the last few of them at least once.

      BOS a b c d  a b c d  a b c d ...          period 4, start 4
      BOS a b c d e f g h i  g h i  g ...        period 3, start 9: late

- Rows that never repeat (`none`, the other control) have nothing that a head could look up.

All random numbers come from generators of the run, so a run is determined by its `Recipe`, and a
run that continues from its `state` equals the run that never stopped, bit for bit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Generator, Tensor, nn

from interp.effects.losses import copy_queries, next_token_losses
from interp.errors import Count, InputError, Seed, Whole, checked
from interp.kinds.builtin import LABELS
from interp.kinds.probes import Probe, repeated
from interp.kinds.scores import Thresholds, ask, score_layer
from interp.scan.measure import asked_of

BOS = 0
"""Id of the first token of every row; all others are ordinary tokens."""


@checked
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that a run depends on.

    Attributes:
        period: Kind of repeat: a period for each row, one for all, or no repeat.
        seed: Seed of the first weights and of the rows.
        vocabulary: Number of ordinary tokens, ids 1 to this.
        length: Tokens in a row, BOS included; the model's context.
        least: Shortest period, in tokens.
        most: Longest period, at most half of a row.
        only: The period of all rows if it is fixed.
        late: Share of the rows that start late.
        rows: Rows in a step.
        width: Width of the residual stream, a multiple of `heads`.
        heads: Heads in each layer.
        layers: Layers of attention; induction takes two.
        rate: Learning rate of AdamW after the warm-up.
        warm_up: Steps in which the rate rises to that, linearly.
        decay: Weight decay.
    """

    period: Annotated[Literal["varying", "fixed", "none"], Field()] = "varying"
    seed: Seed = 0
    vocabulary: Whole = 128
    length: Annotated[Whole, Field(ge=18)] = 65
    least: Annotated[Whole, Field(ge=2)] = 8
    most: Whole = 32
    only: Whole = 20
    late: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.25
    rows: Count = 32
    width: Count = 64
    heads: Count = 4
    layers: Count = 2
    rate: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] = 3e-3
    warm_up: Count = 100
    decay: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.01

    def __post_init__(self) -> None:
        body = self.length - 1
        half = body // 2
        ranges = {"vocabulary": (body, math.inf), "most": (self.least, half), "only": (2, half)}
        for name, (least, most) in ranges.items():
            if not least <= (value := getattr(self, name)) <= most:
                raise InputError(f"{name} must be from {least} to {most}, got {value}")
        if self.width % self.heads:
            raise InputError(f"width must be a multiple of heads, {self.heads}, got {self.width}")


def draw_rows(recipe: Recipe, number: int, generator: Generator) -> Probe:
    """Rows by the recipe: BOS, tokens that differ, and from some place on the last few again.

    A row's token t[i], BOS not counted, is new before the start s, and `t[i - d]` from there on,
    where d is the period. In a late row s is drawn first, then d from the periods that fit twice:
    before s and after it. In the others s is d. All draws are uniform. The queries before the
    start are the part `random`, all later ones the part `repeated`; `periods` is empty if
    nothing repeats.
    """

    def between(least: int, most: int | Tensor, share: Tensor) -> Int[Tensor, "row 1"]:
        return least + (share * (most - least + 1)).long()

    body = recipe.length - 1
    place = torch.arange(body)
    # The order of random numbers: new tokens without replacement, for all rows at once.
    order = torch.rand(number, recipe.vocabulary, dtype=torch.float32, generator=generator)
    new = order.argsort(-1)[:, :body] + 1
    # Three numbers a row, used or not, so that the controls are drawn alike.
    is_late, where, how_long = torch.rand(3, number, 1, dtype=torch.float32, generator=generator)
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
    """A model in training, with measurements on the way.

    Args:
        model: A model with the interface of transformers; its weights that require a gradient are
            changed in place.
        recipe: Rows and settings.

    Attributes:
        step: Number of steps so far.
        looks: Measurements that `look` took, in order.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self.model, self.recipe = model, recipe
        self.step = 0
        self.looks: list[dict[str, Any]] = []
        self._generator = Generator().manual_seed(recipe.seed)
        self._learning = [weight for weight in model.parameters() if weight.requires_grad]
        self._optimiser = torch.optim.AdamW(
            self._learning, lr=recipe.rate, betas=(0.9, 0.98), weight_decay=recipe.decay, fused=True
        )
        # Rows for the measurements: drawn once, and never trained on.
        seed = recipe.seed + 1
        self._own = draw_rows(recipe, 64, Generator().manual_seed(seed))
        ids = torch.arange(1, recipe.vocabulary + 1)
        fixed = partial(repeated, ids, rows=16, length=recipe.length, bos=BOS, seed=seed)
        # Also periods beyond the longest, as far as most of a second copy fits.
        longest = (recipe.length - 1) * 5 // 8
        self._by_period = {period: fixed(period=period) for period in range(4, longest + 1, 4)}
        every = fixed()
        self._tokens = every.tokens
        self._questions = [
            ask(
                every.tokens,
                counted=every.parts[part],
                special=(BOS,),
                thresholds=Thresholds(),
                kinds=asked_of(part),
                statistics=False,
            )
            for part in ("repeated", "random")
        ]

    def advance(self) -> None:
        """One step of AdamW on fresh rows, for the loss on every next token."""
        recipe = self.recipe
        for group in self._optimiser.param_groups:
            group["lr"] = recipe.rate * min(1, (self.step + 1) / recipe.warm_up)
        tokens = draw_rows(recipe, recipe.rows, self._generator).tokens
        loss = _losses(self.model, tokens).mean()
        if not loss.isfinite():
            raise InputError(f"rate must be one that does not diverge, got {recipe.rate}")
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        self.step += 1

    @torch.no_grad()
    def look(self) -> None:
        """Measure losses and every head's scores, once at each step."""
        if self.looks and self.looks[-1]["step"] == self.step:
            return
        by_period = {
            str(period): copy_losses(self.model, probe)["second_copy"]
            for period, probe in self._by_period.items()
        }
        scores: dict[str, list[list[float]]] = {kind: [] for kind in LABELS}
        seen = self.model(input_ids=self._tokens, use_cache=False, output_attentions=True)
        for pattern, questions in product(seen.attentions, self._questions):
            for kind, tally in score_layer(pattern, questions, Thresholds()).tallies.items():
                scores[kind].append([round(mean, 4) for mean in tally.mean.tolist()])
        losses = copy_losses(self.model, self._own)
        self.looks.append({"step": self.step, **losses, "by_period": by_period, "scores": scores})

    def state(self) -> dict[str, Tensor]:
        """All numbers that the next step depends on: weights, optimiser, generator, step."""
        kept = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for index, moments in self._optimiser.state_dict()["state"].items():
            kept |= {f"optimiser.{index}.{name}": value for name, value in moments.items()}
        kept |= {"luck": self._generator.get_state(), "step": torch.tensor(self.step)}
        return {name: value.detach().clone() for name, value in kept.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take a new run to the step of `state`, without `looks`; refuse part of a state."""
        step, expected = int(state.get("step", -1)), self.state()
        for index, weight in enumerate(self._learning if step else []):
            like = {"step": torch.zeros(()), "exp_avg": weight, "exp_avg_sq": weight}
            expected |= {f"optimiser.{index}.{name}": value for name, value in like.items()}
        for name, like in expected.items():
            value = state.get(name)
            if step < 0 or value is None or (value.shape, value.dtype) != (like.shape, like.dtype):
                raise InputError(f"{name} must be {like.dtype} {list(like.shape)} of a step from 0")
        optimiser = self._optimiser.state_dict()
        for name in expected.keys() - {"luck", "step"}:
            group, index, moment = name.split(".", 2)
            if group == "optimiser":
                optimiser["state"].setdefault(int(index), {})[moment] = state[name].clone()
        self._generator.set_state(state["luck"])
        weights = {name: state[f"model.{name}"] for name in self.model.state_dict()}
        self.model.load_state_dict(weights)
        self._optimiser.load_state_dict(optimiser)
        self.step = step


def _losses(model: nn.Module, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch query"]:
    return next_token_losses(model(input_ids=tokens, use_cache=False).logits, tokens)


@torch.no_grad()
def copy_losses(model: nn.Module, probe: Probe) -> dict[str, float | None]:
    """Mean loss in nats per token on the second copy and on the first.

    They are over the queries of `interp.effects.losses.copy_queries`; None without such queries.
    """
    by_query = _losses(model, probe.tokens)
    means = {name: by_query[part].mean().item() for name, part in copy_queries(probe).items()}
    return {name: None if math.isnan(mean) else round(mean, 4) for name, mean in means.items()}
