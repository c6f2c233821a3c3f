"""`ablate`: what each head does to a metric, as the change without it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from interp.effects.ablate import AnyHead, chosen_heads
from interp.effects.head_effects import HeadEffects, ids_as_text, record_of, row_of
from interp.effects.metrics import Metric, bound, name_of
from interp.effects.replaced import Group, Outputs, Prompts, change_to
from interp.errors import InputError, Seed, checked, quoted
from interp.models import load_model

REPLACEMENTS = ("mean", "zero", "resample")
"""What `ablate` puts in the place of a head's output."""


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
        The effect of each head, with a 95 % interval over the prompts (bootstrap), and the band of
        an ordinary head.

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
    known, chosen = chosen_heads(model, heads)
    metric = bound(metric, model)
    runs = Prompts(model, model.to_tokens(prompts), metric)
    before = runs.metric()
    outputs = _others(runs.groups, how, seed)
    after = runs.replaced([change_to(outputs, [head]) for head in known], progress=progress)
    place = {"mean": "its mean over the prompts", "zero": "0", "resample": "z of another prompt"}
    made_by = record_of(
        model,
        metric,
        *(f"z replaced by {place[how]}", f"change of {name_of(metric)}"),
        seed=seed,
        how=how,
        mean=float(before.mean()),
        prompts=ids_as_text(runs.tokens),
    )
    rows, kept = [row_of(head) for head in known], [head in chosen for head in known]
    return HeadEffects.of(rows, after - before, torch.ones_like(before), seed, made_by, kept)


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
