"""`ablate`: what heads do to a metric, as its change without them, one by one or in sets."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.effects.ablate import heads_in, parsed_heads
from interp.effects.head_effects import HeadEffects, ids_as_text, row_of
from interp.effects.metrics import Metric, bound, name_of, record_of
from interp.effects.replaced import Group, Outputs, Prompts, change_to
from interp.errors import Count, InputError, Seed, checked, quoted
from interp.heads import AnyHead, Head
from interp.models import load_model
from interp.scan.table import HeadScan, check_scan

REPLACEMENTS = ("mean", "zero", "resample")
"""What `ablate` puts in the place of a head's output."""

Heads = frozenset[Head]
"""Heads that are taken out together."""


@checked
def ablate(
    model: Any,
    prompts: Any,
    metric: Metric,
    heads: Any = None,
    how: str = "mean",
    *,
    given: AnyHead | Collection[AnyHead] | None = None,
    scan: HeadScan | None = None,
    draws: Count = 20,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> HeadEffects:
    """The effect of taking heads out, one by one or in sets, on a metric of any prompts.

    An effect `E` is the metric without the heads minus the metric with them, averaged over the
    prompts, in the metric's unit. It depends on what takes the heads' place (Miller et al. 2024,
    arXiv 2407.08734), so compare several. `interp.ablated` is a model without heads, for any use.

    A backup head does the work of others only once these are gone (McGrath et al. 2023,
    arXiv 2307.15771). With `given`, heads S that are out in any case, the effect is the conditional
    one, `E(S and h) - E(S)`, next to `E(h)` alone; their difference shows a backup.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes; causal.
        prompts: Prompts, as for `Model.to_tokens`, such as those of a task.
        metric: Metric, as for `interp.patch`.
        heads: Heads to take out: each alone (a list; all if left out); in sets, a row each (a list
            of lists, or a mapping from names to heads); or labels such as `induction`, with a scan.
        how: Replacement of a head's output z at every position: `mean`, its mean over all tokens
            of the prompts but each first one; `zero`; or `resample`, its output at the same
            positions of another prompt of the same length, drawn at random.
        given: Heads, or with a scan labels, that are out in any case.
        scan: Scan of this model, whose labels can stand for their heads.
        draws: Number of random sets of other heads for the band of each set.
        seed: Seed of the intervals, of the random sets and of the draw for `resample`.
        progress: Callback, called with (sets done, sets in all).

    Returns:
        The effect of each head or set, with a 95 % interval over the prompts (bootstrap), and the
        least and the largest effect of random other heads, as many from each layer. With `given`
        also `alone`, and `backup`, the conditional effect minus the one alone, with its interval
        and band.

    Raises:
        InputError: If an argument is wrong, or for `resample` a prompt has no other of its length.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> metric, prompts = interp.logit_difference(right=[6], wrong=[9]), [[0, 5, 6, 7, 5]]
        >>> effects = interp.ablate(toy, prompts, metric, how="zero")
        >>> sorted(effects.strongest(2)["name"])  # Without either, nothing is predicted.
        ['L0H3', 'L1H5']
        >>> pair = interp.ablate(toy, prompts, metric, {"the circuit": ["L0H3", "L1H5"]})
        >>> pair.to_frame()["name"].tolist()
        ['the circuit']
    """
    check_how(how)
    model = load_model(model)
    if scan is not None:
        check_scan(scan, model)
    _, known, n_heads, name = heads_in(model)

    def named(argument: str, asked: Any) -> dict[str, Heads]:
        """Sets of heads by name: of a mapping, of a list or of one head or label."""
        if isinstance(asked, Mapping):
            return {str(key): _union(named(argument, some).values()) for key, some in asked.items()}
        if scan is not None and isinstance(asked, str) and not asked[-1:].isdigit():
            return {asked: Heads(scan.heads(asked))}  # No label ends in a digit.
        several = not isinstance(asked, tuple) or all(isinstance(a, str | tuple) for a in asked)
        if isinstance(asked, str) or not (several and isinstance(asked, Iterable)):
            return {str(head): Heads([head]) for head in parsed_heads(argument, asked, known, name)}
        items = [named(argument, item) for item in asked]
        return {"+".join(item): _union(item.values()) for item in items}

    out = Heads() if given is None else _union(named("given", given).values())
    sets = named("heads", known if heads is None else heads)
    sets = {key: some - out for key, some in sets.items() if heads is not None or some - out}
    if empty := [key for key, some in sets.items() if not some]:
        raise InputError(
            f"heads must be at least one beyond given, got none for {quoted(empty[0])}"
        )
    if not sets:
        raise InputError("heads must be at least one, got none")
    alone = all(len(some) == 1 for some in sets.values())
    if alone:
        sets = dict(sorted(sets.items(), key=lambda item: min(item[1])))
    drawn = {
        some: [
            Heads(draw)
            for draw in random_draws(
                sorted(some), n_heads, draws if len(some) > 1 else max(draws, n_heads), seed, out
            )
        ]
        for some in sets.values()
    }
    every = [*sets.values(), *itertools.chain(*drawn.values())]
    every += [some | out for some in every] + [out]
    metric = bound(metric, model)
    runs = Prompts(model, model.to_tokens(prompts), metric)
    found = without(runs, every, how, seed, progress)

    def conditional(some: Heads) -> Tensor:
        return found[some | out] - found[out]

    place = {"mean": "its mean over the prompts", "zero": "0", "resample": "z of another prompt"}
    taken = f", given that {', '.join(map(str, sorted(out)))} are out" if out else ""
    made_by = record_of(
        model,
        metric,
        *(f"z replaced by {place[how]}{taken}", f"change of {name_of(metric)}"),
        random="least and largest effect of random other heads, as many from each layer",
        draws=draws,
        seed=seed,
        how=how,
        given=[*map(str, sorted(out))],
        mean=float(runs.before.mean()),
        prompts=ids_as_text(runs.tokens),
    )
    rows = [
        row_of(min(some)) if alone else {"name": key, "heads": " ".join(map(str, sorted(some)))}
        for key, some in sets.items()
    ]
    once = torch.ones_like(runs.before)

    def measured(change: Callable[[Heads], Tensor]) -> HeadEffects:
        changes = torch.stack([change(some) for some in sets.values()])
        bands = [[float(change(draw).mean()) for draw in drawn[some]] for some in sets.values()]
        ends = [[pick(band, default=math.nan) for band in bands] for pick in (min, max)]
        return HeadEffects.of(rows, changes, once, seed, made_by, band=torch.tensor(ends))

    effects = measured(conditional)
    if out:
        backup = measured(lambda some: conditional(some) - found[some]).frame
        effects.frame["alone"] = [float(found[some].mean()) for some in sets.values()]
        effects.frame["backup"] = backup["effect"]
        for end in ("low", "high", "random_low", "random_high"):
            effects.frame[f"backup_{end}"] = backup[end]
    return effects


def check_how(how: str) -> None:
    """Refuse an unknown replacement."""
    if how not in REPLACEMENTS:
        raise InputError(f"how must be one of {', '.join(REPLACEMENTS)}, got {quoted(how)}")


def without(
    runs: Prompts,
    sets: Iterable[Heads],
    how: str,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> dict[Heads, Float[Tensor, " prompt *measure"]]:
    """The change of each prompt's metric without each of the sets, each measured once."""
    outputs = _others(runs.groups, how, seed)
    several = [*dict.fromkeys(some for some in sets if some)]
    after = runs.replaced([change_to(outputs, some) for some in several], progress=progress)
    changes = dict(zip(several, after - runs.before, strict=True))
    return {Heads(): torch.zeros_like(runs.before), **changes}


def random_draws(
    heads: Sequence[Head], n_heads: int, draws: int, seed: int, but: Collection[Head] = ()
) -> list[tuple[Head, ...]]:
    """`draws` different draws of other heads, as many from each layer as `heads` has there.

    If a layer has too few others, all of them are drawn; if there are no more than `draws`
    different draws, each is made once. Heads of `but` are never drawn.

    Example:
        >>> random_draws([Head(0, 0), Head(2, 1)], n_heads=2, draws=20, seed=0)
        [(L0H1, L2H0)]
    """
    pools = []
    for layer, number in sorted(Counter(head.layer for head in heads).items()):
        every = (Head(layer, i) for i in range(n_heads))
        others = [head for head in every if head not in heads and head not in but]
        pools.append((others, min(number, len(others))))
    if not any(number for _, number in pools):
        return []
    if math.prod(math.comb(len(others), number) for others, number in pools) <= draws:
        every = itertools.product(*(itertools.combinations(*pool) for pool in pools))
        return [tuple(itertools.chain(*parts)) for parts in every]
    generator = torch.Generator().manual_seed(seed)
    made: dict[tuple[Head, ...], None] = {}
    while len(made) < draws:
        draw = []
        for others, number in pools:
            picked = torch.randperm(len(others), generator=generator)[:number].tolist()
            draw += [others[i] for i in sorted(picked)]
        made[tuple(draw)] = None
    return list(made)


def _union(sets: Iterable[Heads]) -> Heads:
    return Heads().union(*sets)


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
