"""Maps of effects: what each head does to a metric, on any prompts.

`patch` puts the output that a head has in clean prompts into the run of the corrupted ones: does
this head alone bring the answer back? `ablate` takes each head out: does the model need it?
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.effects.ablate import AnyHead, heads_in, parsed_heads
from interp.effects.head_effects import HeadEffects
from interp.effects.losses import interval
from interp.effects.metrics import AnswerMetric, Metric
from interp.effects.replaced import Group, Outputs, Prompts
from interp.effects.tasks import paired_tokens
from interp.errors import InputError, Seed, Whole, checked, quoted
from interp.heads import Head
from interp.kinds.targets import NONE
from interp.models import Model, load_model
from interp.scan.record import Record

LOG = logging.getLogger("interp")

REPLACEMENTS = ("mean", "zero", "resample")
"""What `ablate` puts in the place of a head's output."""


@checked
def patch(
    model: Any,
    clean: Any,
    corrupted: Any,
    metric: Metric,
    what: str = "z",
    *,
    heads: AnyHead | Sequence[AnyHead] | None = None,
    position: Whole | None = None,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> HeadEffects:
    """The effect of putting each head's output in clean prompts into the run of corrupted ones.

    An effect is normalised: 0 is the corrupted run and 1 the clean one,
    `(m(patched) - m(corrupted)) / (m(clean) - m(corrupted))`, with the mean over the pairs above
    and below. Heads are patched one at a time (activation patching: Vig et al. 2020,
    arXiv 2004.12265; Wang et al. 2022, arXiv 2211.00593).

    Args:
        model: A `Model`, or anything that `interp.load_model` takes; causal.
        clean: Prompts, as for `Model.to_tokens`, such as those of a task.
        corrupted: Prompts with as many tokens each.
        metric: Metric, such as `interp.logit_difference(task)`, or any function of
            `(logits [batch, pos, id], tokens [batch, pos])` that returns `[batch]`.
        what: Activation that is patched: `z`, a head's output before W_O.
        heads: Heads to patch; all if left out.
        position: Token whose output is patched, from the end of each prompt if negative (-1 is the
            last token); all if left out.
        seed: Seed of the intervals.
        progress: Callback, called with (heads done, heads in all).

    Returns:
        The normalised effect of each head, with a 95 % interval over the pairs (bootstrap), and the
        range of the other heads of its layer.

    Raises:
        InputError: If the prompts of a pair differ in their number of tokens, or the metric does
            not differ between the clean and the corrupted run.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> clean, corrupted = torch.tensor([[0, 5, 6, 7, 5]]), torch.tensor([[0, 5, 9, 7, 5]])
        >>> metric = interp.logit_difference(right=[6], wrong=[9])
        >>> effects = interp.patch(toy, clean, corrupted, metric)
        >>> effects.strongest(1)["name"].item()  # The induction head.
        'L1H5'
    """
    if what != "z":
        raise InputError(f"what must be z, got {quoted(what)}")
    model = load_model(model)
    known, chosen = _chosen(model, heads)
    ids = paired_tokens(model, clean, corrupted)
    _check_position(ids[1], position)
    metric = _bound(metric, model)
    source, prompts = (Prompts(model, tokens, metric) for tokens in ids)
    before, outputs = prompts.metric(), [group.z for group in source.groups]
    whole = source.metric() - before
    _check_whole(whole, seed)
    after = prompts.replaced(known, outputs, position=position, progress=progress)
    made_by = _record(
        model,
        metric,
        *(f"{what} of the clean run", "share of the clean run: 0 corrupted, 1 clean"),
        seed=seed,
        position=position,
        clean_mean=float((whole + before).mean()),
        corrupted_mean=float(before.mean()),
        clean=_texts(ids[0]),
        prompts=_texts(ids[1]),
    )
    return HeadEffects.of(known, chosen, after - before, whole, seed, made_by)


@checked
def ablate(
    model: Any,
    prompts: Any,
    metric: Metric,
    heads: AnyHead | Sequence[AnyHead] | None = None,
    how: str = "mean",
    *,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> HeadEffects:
    """The effect of taking each head out, alone, on a metric of any prompts.

    An effect is the metric without the head minus the metric with it, averaged over the prompts, in
    the metric's unit. It depends on what takes the head's place (Miller et al. 2024,
    arXiv 2407.08734), so compare several. `interp.ablated` takes several heads out together.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes; causal.
        prompts: Prompts, as for `Model.to_tokens`, such as those of a task.
        metric: Metric, as for `interp.patch`.
        heads: Heads to ablate, each alone; all if left out.
        how: Replacement of a head's output z at every position: `mean`, its mean over all tokens
            of the prompts but each first one; `zero`; or `resample`, its output at the same
            positions of another prompt of the same length, drawn at random.
        seed: Seed of the intervals and of the draw for `resample`.
        progress: Callback, called with (heads done, heads in all).

    Returns:
        The effect of each head, with a 95 % interval over the prompts (bootstrap), and the range of
        the other heads of its layer.

    Raises:
        InputError: If an argument is wrong, or for `resample` a prompt has no other of its length.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> metric = interp.logit_difference(right=[6], wrong=[9])
        >>> effects = interp.ablate(toy, torch.tensor([[0, 5, 6, 7, 5]]), metric, how="zero")
        >>> sorted(effects.strongest(2)["name"])  # Without either, nothing is predicted.
        ['L0H3', 'L1H5']
    """
    if how not in REPLACEMENTS:
        raise InputError(f"how must be one of {', '.join(REPLACEMENTS)}, got {quoted(how)}")
    model = load_model(model)
    known, chosen = _chosen(model, heads)
    metric = _bound(metric, model)
    runs = Prompts(model, model.to_tokens(prompts), metric)
    before = runs.metric()
    changes = runs.replaced(known, _others(runs.groups, how, seed), progress=progress) - before
    place = {"mean": "its mean over the prompts", "zero": "0", "resample": "z of another prompt"}
    made_by = _record(
        model,
        metric,
        *(f"z replaced by {place[how]}", f"change of {_name(metric)}"),
        seed=seed,
        how=how,
        mean=float(before.mean()),
        prompts=_texts(runs.tokens),
    )
    return HeadEffects.of(known, chosen, changes, torch.ones_like(before), seed, made_by)


def _chosen(model: Model, heads: Any) -> tuple[list[Head], list[Head]]:
    """All heads of the layers that some of `heads` are in, and those of `heads`, by layer."""
    _, known, _, name = heads_in(model)
    chosen = known if heads is None else sorted(parsed_heads("heads", heads, known, name))
    if not chosen:
        raise InputError("heads must be at least one, got none")
    layers = {head.layer for head in chosen}
    return [head for head in known if head.layer in layers], chosen


def _others(groups: Sequence[Group], how: str, seed: int) -> list[Outputs]:
    """For each group, what takes the place of its heads' outputs."""
    layers = [*groups[0].z]
    if how == "zero":
        return [{i: torch.zeros_like(z) for i, z in group.z.items()} for group in groups]
    if how == "mean":
        count = sum(group.tokens[:, 1:].numel() for group in groups)
        rows = {i: [g.z[i][:, 1:].float().sum((0, 1)) for g in groups] for i in layers}
        means = {i: torch.stack(sums).sum(0) / count for i, sums in rows.items()}
        return [{i: means[i].expand_as(g.z[i]) for i in layers} for g in groups]
    generator = torch.Generator().manual_seed(seed)
    sources: dict[int, int] = {}
    for size in dict.fromkeys(group.tokens.shape[1] for group in groups):
        of_size = torch.tensor([r for g in groups for r in g.rows if g.tokens.shape[1] == size])
        if len(of_size) < 2:
            raise InputError(
                "prompts must be at least two of each length for resample, got one of"
                f" {size} tokens"
            )
        order = of_size[torch.randperm(len(of_size), generator=generator)]
        sources |= dict(zip(order.tolist(), order.roll(1).tolist()))  # None is its own.
    place = {row: (group, at) for group in groups for at, row in enumerate(group.rows)}

    def drawn(row: int, layer: int) -> Tensor:
        group, at = place[sources[row]]
        return group.z[layer][at]

    return [{i: torch.stack([drawn(row, i) for row in g.rows]) for i in layers} for g in groups]


def _bound(metric: Any, model: Model) -> Metric:
    """The metric, with the ids of its answers in this model."""
    return metric.bound(model) if isinstance(metric, AnswerMetric) else metric


def _name(metric: Any) -> str:
    return str(getattr(metric, "name", getattr(metric, "__name__", type(metric).__name__)))


def _check_position(tokens: Int[Tensor, "batch pos"], position: int | None) -> None:
    shortest = int((tokens != NONE).sum(-1).min())
    if position is not None and not -shortest <= position < shortest:
        raise InputError(
            f"position must be from {-shortest} to {shortest - 1}, as the shortest prompt has"
            f" {shortest} tokens, got {position}"
        )


def _check_whole(whole: Float[Tensor, " batch"], seed: int) -> None:
    """Refuse or warn about a difference that effects cannot be divided by."""
    if not whole.mean():
        raise InputError(
            "metric must differ between clean and corrupted prompts, got no difference"
        )
    low, high = interval(whole[:, None], seed) if len(whole) > 1 else (1.0, 1.0)
    if low <= 0 <= high:
        LOG.warning(
            "the metric differs between clean and corrupted prompts by %.2g only, 95 %% interval"
            " %.2g to %.2g: effects are divided by this difference and mean little",
            *(whole.mean(), low, high),
        )


def _record(model: Model, metric: Metric, what: str, unit: str, **more: Any) -> dict[str, Any]:
    return Record.of_model(
        model,
        what=what,
        unit=unit,
        metric=_name(metric),
        interval="95 % of 2000 resamples of the prompts",
        random="least and largest effect of the other heads of the same layer",
        **more,
    )


def _texts(tokens: Int[Tensor, "batch pos"]) -> list[str]:
    """The ids of each prompt as one text."""
    return [" ".join(map(str, row[row != NONE].tolist())) for row in tokens]
