"""Causal tests of labels: the model's loss without the heads that carry a label.

`verify` ablates the strongest heads of each label together (see `interp.ablated`) and compares the
loss before and after. Ablating any heads costs something, so the same is done with random other
heads of the same layers, many times; an effect counts as the label's only if it is beyond all of
those.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pandas as pd
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from interp.effects.ablate import METHODS, ablated, losses, mean_outputs
from interp.effects.losses import interval, late_and_early
from interp.effects.verdicts import Effect, LabelEffects, Verification
from interp.errors import Count, InputError, Seed, Whole, checked
from interp.heads import Head
from interp.kinds import probes
from interp.kinds.kind import FORCED_WINDOW
from interp.kinds.labels import MIXED, NOT_ENOUGH, excess
from interp.kinds.scores import Thresholds
from interp.models import Model, load_model
from interp.scan.plan import encoded_passages, row_length
from interp.scan.record import Record
from interp.scan.table import WORDS, HeadScan, check_scan

MEASURES = ("second_copy", "first_copy", "in_context_score", "text")
"""What is compared before and after, the deciding measure first: see `ablate.losses`."""


@checked
def verify(
    model: Any,
    scan: HeadScan,
    *,
    kinds: str | Sequence[str] | None = None,
    top: Count = 10,
    draws: Count = 20,
    rows: Annotated[Whole, Field(ge=2)] = 4,
    length: Whole | None = None,
    seed: Seed = 0,
    methods: Sequence[str] = METHODS,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Ablate the heads of each label, and compare the cost with that of random other heads.

    Two probes are run: random tokens that repeat, and natural text, if there is a tokenizer.
    The heads of a label are those that carry it, the strongest first, followed up to `top`
    by the next by score as long as their excess is at least half the label's threshold:
    close relatives left in place would do the work of the ablated heads. A random draw
    replaces each of them by another head of the same layer, never by one of the set; the
    drawn heads may carry the label too, and the notes count them.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes.
        scan: Scan of this model, from `interp.scan_heads`.
        kinds: Labels to judge, such as `induction` or `previous token`; all if left out.
        top: Number of heads of each label to ablate together, at most.
        draws: Number of random draws for each label.
        rows: Number of rows of random tokens, and of text, if the passages allow; at least 2.
        length: Tokens in a row; 129 if left out, or the model's context if that is shorter.
            Rows of text are three quarters as long: the second copy decides.
        seed: Seed of the random tokens, the draws and the intervals.
        methods: Replacements of the heads' output, `zero` and `mean`; the first decides.
            The mean is over the queries of the same probe.
        progress: Callback, called with (runs done, runs in all).

    Returns:
        Effects in nats per token with 95 % intervals over rows, those of the random draws, and
        a verdict for each label.

    Raises:
        InputError: If the scan is of another model, or a label or method is unknown.
    """
    if not methods or not set(methods) <= set(METHODS):
        raise InputError(f"methods must be among {', '.join(METHODS)}, got {list(methods)}")
    model = load_model(model)
    check_scan(scan, model)
    labels = [kinds] if isinstance(kinds, str) else kinds or labels_in(scan)
    labels = [label.replace("_", " ") for label in labels]
    chosen = {label: _strongest(scan, label, top) for label in labels}
    plans = {
        label: random_draws(list(heads), model.n_heads, draws, seed)
        for label, heads in chosen.items()
    }
    total = len(methods) * sum(1 + len(plans[label]) for label, heads in chosen.items() if heads)
    count = itertools.count(1)
    tokens = _probes(model, rows, seed, row_length(model, length))
    means = [mean_outputs(model, probe) if "mean" in methods else {} for probe in tokens]

    def measured(heads: Sequence[Head], method: str) -> dict[str, Float[Tensor, " row"]]:
        measures = {}
        for probe, mean in zip(tokens, means, strict=True):
            with ablated(model, heads, method, mean):
                measures |= losses(model, probe)
        return {name: measures[name] for name in MEASURES if name in measures}

    def changes(heads: Sequence[Head], method: str) -> dict[str, Float[Tensor, " row"]]:
        after = measured(heads, method)
        if progress is not None:
            progress(next(count), total)
        return {name: after[name] - before[name] for name in before}

    before = measured([], "zero")
    results = {}
    for label, heads in chosen.items():
        effects = {}
        for method in methods if heads else ():
            together = changes(list(heads), method)
            others = [changes(draw, method) for draw in plans[label]]
            effects[method] = {
                name: Effect(
                    float(change.mean()),
                    tuple(interval(change[:, None], seed)),
                    tuple(float(other[name].mean()) for other in others),
                )
                for name, change in together.items()
            }
        carriers = set(scan.heads(label))
        results[label] = LabelEffects(
            tuple(heads),
            tuple(heads.values()),
            len(carriers.intersection(heads)),
            tuple(plans[label]),
            tuple(_notes(list(heads), carriers, plans[label], model.n_heads, draws)),
            effects,
        )
    in_context: Any = "not measured: the model has no tokenizer"
    for probe in tokens:
        if "text" in probe.parts:
            parts = zip(("late", "early"), late_and_early(probe.tokens.shape[1] - 1), strict=True)
            in_context = {name: [part.start, part.stop] for name, part in parts}
    of_scan = ("model", "revision", "seed", "method", "dtype", "thresholds")
    made_by = Record.of_model(
        model,
        top=top,
        draws=draws,
        seed=seed,
        methods=list(methods),
        decided_by=f"{MEASURES[0]}, {methods[0]}",
        unit="nats",
        in_context_score=in_context,
        mean="mean output over the queries of the probe itself, but each row's first",
        interval="95 % of 2000 resamples of the rows",
        scan={name: value for name, value in scan.made_by.items() if name in of_scan},
        probes=[probe.record() for probe in tokens],
    )
    means_before = {name: float(loss.mean()) for name, loss in before.items()}
    return Verification(means_before, results, made_by)


def labels_in(scan: HeadScan | None = None) -> list[str]:
    """Every label that a head can have, and the other labels of heads of `scan`."""
    present = set() if scan is None else {label for row in scan.frame["labels"] for label in row}
    others = present - {*WORDS, MIXED, NOT_ENOUGH, FORCED_WINDOW}
    return [*WORDS, *sorted(others)]


def random_draws(
    heads: Sequence[Head], n_heads: int, draws: int, seed: int
) -> list[tuple[Head, ...]]:
    """`draws` different draws of other heads, as many from each layer as `heads` has there.

    If a layer has too few others, all of them are drawn; if there are no more than `draws`
    different draws, each is made once.

    Example:
        >>> random_draws([Head(0, 0), Head(2, 1)], n_heads=2, draws=20, seed=0)
        [(L0H1, L2H0)]
    """
    pools = []
    for layer, number in sorted(Counter(head.layer for head in heads).items()):
        others = [Head(layer, i) for i in range(n_heads) if (layer, i) not in heads]
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


def _strongest(scan: HeadScan, label: str, top: int) -> dict[Head, float | None]:
    """The heads to ablate for `label` with their scores; empty if no head carries it."""
    labelled = scan.having(label)
    kind = label.replace(" ", "_")
    if f"{kind}_chance" not in scan.frame or not len(labelled):
        return {Head.parse(name): None for name in labelled["name"].head(top)}
    needed = scan.made_by.get("thresholds", {}).get(kind, getattr(Thresholds(), kind))
    scored = scan.frame.dropna(subset=[kind, f"{kind}_chance"])
    near = [
        {label, f"anti-{label}"}.isdisjoint(labels) and excess(score, chance) >= needed / 2
        for labels, score, chance in zip(scored["labels"], scored[kind], scored[f"{kind}_chance"])
    ]
    fill = scored.loc[near].sort_values([kind, "layer", "head"], ascending=[False, True, True])
    strongest = pd.concat([labelled, fill]).head(top)
    return dict(zip(map(Head.parse, strongest["name"]), map(float, strongest[kind])))


def _notes(
    heads: list[Head], carriers: set[Head], drawn: list[tuple[Head, ...]], n_heads: int, draws: int
) -> list[str]:
    notes = []
    if unlabelled := [head for head in heads if head not in carriers]:
        verbs = ("do", "come") if unlabelled[1:] else ("does", "comes")
        names = ", ".join(map(str, unlabelled))
        notes.append(f"{names} {verbs[0]} not carry the label and {verbs[1]} next by score")
    for layer, number in sorted(Counter(head.layer for head in heads).items()):
        if n_heads < 2 * number:
            notes.append(f"layer {layer} has {n_heads - number} other heads for {number} ablated")
    if 0 < len(drawn) < draws:
        notes.append(f"there are only {len(drawn)} different random draws")
    picked = [head for draw in drawn for head in draw]
    if share := sum(head in carriers for head in picked):
        notes.append(f"{share} of the {len(picked)} heads drawn at random carry the label too")
    return notes


def _probes(model: Model, rows: int, seed: int, length: int) -> list[probes.Probe]:
    random = probes.repeated(model.vocabulary, rows=rows, length=length, bos=model.bos, seed=seed)
    encoded = encoded_passages(model)
    if not encoded:
        return [random]
    shortest = min(map(len, encoded)) + (model.bos is not None)
    text_length = min(length * 3 // 4 + 1, shortest)
    natural = probes.text(encoded, rows=rows, length=text_length, bos=model.bos)
    return [random] if natural is None else [random, natural]
