"""Does a label matter? What the model loses without the heads that carry it.

`verify` takes the strongest heads of each label out of the model together (see
`interp.effects.ablate`) and looks at the loss before and after. Taking out any heads costs
something, so the same is done with random other heads of the same layers, many times; only
what goes beyond all of those is put down to the label.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from interp.effects.ablate import Means, ablated, late_and_early, losses, mean_outputs
from interp.effects.verdicts import Effect, LabelEffects, Verification
from interp.errors import InputError, whole, whole_seed
from interp.heads import Head
from interp.kinds import evidence, probes
from interp.kinds.labels import FORCED_WINDOW, MIXED, NOT_ENOUGH, excess
from interp.kinds.mass import Tally
from interp.kinds.scores import Thresholds
from interp.models import Model, load_model
from interp.scan.plan import encoded_passages, row_length
from interp.scan.record import Record
from interp.scan.table import WORDS, HeadScan, check_scan

MEASURES = ("second_copy", "first_copy", "in_context_score", "text")
"""What is looked at before and after, the measure that decides first: see `ablation.losses`."""

_RESAMPLES = 2000


def verify(
    model: Any,
    scan: HeadScan,
    *,
    kinds: str | Sequence[str] | None = None,
    top: SupportsIndex = 10,
    draws: SupportsIndex = 20,
    rows: SupportsIndex = 4,
    length: SupportsIndex | None = None,
    seed: SupportsIndex = 0,
    methods: Sequence[str] = ("zero", "mean"),
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Take the heads of each label out of the model, and compare with random other heads.

    Two probes are run: random tokens that repeat, and natural text, if there is a tokenizer.
    The heads of a label are those that carry it, the strongest first, filled up to `top`
    with the next by score as long as their excess is at least half the label's threshold:
    close relatives left in place would do the work of those taken out. A random draw
    replaces each of them by another head of the same layer, none of them in the set; the
    drawn heads may carry the label too, and the notes say how many do.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes.
        scan: What `interp.scan_heads` said of this model.
        kinds: Labels to judge, such as `induction` or `previous token`; all if left out.
        top: Heads of each label to take out together, at most.
        draws: Random draws for each label.
        rows: Rows of random tokens; there are as many of text, if the passages allow.
        length: Tokens in a row; 129 if left out, or the model's context if that is shorter.
            Rows of text are three quarters as long: the second copy decides.
        seed: Of the random tokens, the draws and the intervals.
        methods: What stands in for the heads' output, `zero` and `mean`; the first decides.
            The mean is over the queries of the very probe that is run.
        progress: Called with (runs done, runs in all).

    Raises:
        InputError: If the scan is of another model, a label or method is unknown, or a number
            is too small or not a whole one.
    """
    _check_methods(methods)
    top, draws, rows, seed = (
        whole("top", top, least=1),
        whole("draws", draws, least=1),
        whole("rows", rows, least=2),
        whole_seed(seed),
    )
    length = None if length is None else whole("length", length)
    model = load_model(model)
    check_scan(scan, model)
    kinds = [kinds] if isinstance(kinds, str) else kinds
    asked = list(dict.fromkeys(kinds or labels_in(scan)))
    chosen = {label: _strongest(scan, label, top) for label in asked}
    made = _probes(model, rows, seed, row_length(model, length))

    bench = _Bench(model, made, seed)
    plans = {
        label: random_draws(list(heads), model.n_heads, draws, seed)
        for label, heads in chosen.items()
    }
    total = sum(len(methods) * (1 + len(plan)) for label, plan in plans.items() if chosen[label])
    count = itertools.count(1)

    def without(heads: Sequence[Head], method: str) -> dict[str, Tensor]:
        changes = bench.changes(heads, method)
        if progress is not None:
            progress(next(count), total)
        return changes

    found = {}
    for label, heads in chosen.items():
        if not heads:
            found[label] = LabelEffects(label)
            continue
        effects = {}
        for method in methods:
            own = without(list(heads), method)
            others = [without(draw, method) for draw in plans[label]]
            effects[method] = {
                name: _effect(own[name], [other[name] for other in others], seed)
                for name in MEASURES
                if name in own
            }
        found[label] = LabelEffects(
            label,
            tuple(heads),
            tuple(heads.values()),
            sum(head in scan.heads(label) for head in heads),
            tuple(plans[label]),
            tuple(_notes(model, scan, label, list(heads), plans[label], draws)),
            effects,
        )
    before = {name: float(bench.before[name].mean()) for name in MEASURES if name in bench.before}
    options = {"top": top, "draws": draws, "seed": seed, "methods": list(methods)}
    return Verification(before, found, _made_by(model, scan, made, options))


def labels_in(scan: HeadScan | None = None) -> list[str]:
    """Every label that a head can have, and those that heads of `scan` have besides."""
    present = set() if scan is None else {label for row in scan.frame["labels"] for label in row}
    others = present - {*WORDS, MIXED, NOT_ENOUGH, FORCED_WINDOW}
    return [*WORDS, *sorted(others)]


def random_draws(
    heads: Sequence[Head], n_heads: int, draws: int, seed: int
) -> list[tuple[Head, ...]]:
    """As many other heads as `heads`, from the same layers, so many times; no draw twice.

    Where a layer has too few others, all of them are drawn; where there are no more than
    `draws` different draws, each is made once.

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


class _Bench:
    """The probes, the losses with all heads in place, and the heads' means once asked for."""

    def __init__(self, model: Model, made: list[probes.Probe], seed: int) -> None:
        self._model = model
        self._probes = made
        self._means: list[Means] = []
        self.before = self._measure([], "zero")

    def changes(self, heads: Sequence[Head], method: str) -> dict[str, Float[Tensor, " row"]]:
        """Each measure without `heads` minus with them, for each row."""
        if method == "mean" and not self._means:
            self._means = [mean_outputs(self._model, probe) for probe in self._probes]
        after = self._measure(heads, method)
        return {name: after[name] - before for name, before in self.before.items()}

    def _measure(self, heads: Sequence[Head], method: str) -> dict[str, Tensor]:
        found = {}
        for index, probe in enumerate(self._probes):
            means = self._means[index] if method == "mean" else None
            with ablated(self._model, heads, method, means):
                found |= losses(self._model, probe)
        return found


def _effect(own: Float[Tensor, " row"], others: Sequence[Tensor], seed: int) -> Effect:
    rows = own.double()[:, None]
    tally = Tally(rows, torch.zeros_like(rows), torch.ones(len(own), dtype=torch.long))
    low, high = evidence.interval(tally, draws=_RESAMPLES, seed=seed).flatten().tolist()
    return Effect(float(own.mean()), (low, high), tuple(float(other.mean()) for other in others))


def _strongest(scan: HeadScan, label: str, top: int) -> dict[Head, float | None]:
    """The heads to take out for `label` with their scores; none if none carries it."""
    labelled = scan.having(label)
    kind = label.replace(" ", "_")
    if f"{kind}_chance" not in scan.frame or not len(labelled):
        return {Head.parse(name): None for name in labelled["name"].head(top)}
    needed = scan.made_by.get("thresholds", {}).get(kind, getattr(Thresholds(), kind))
    near = {}
    for row in scan.frame.dropna(subset=[kind, f"{kind}_chance"]).to_dict("records"):
        opposed = f"anti-{label}" in row["labels"]
        enough = excess(row[kind], row[f"{kind}_chance"]) >= needed / 2
        if enough and not opposed and label not in row["labels"]:
            near[Head.parse(row["name"])] = float(row[kind])
    fill = sorted(near.items(), key=lambda item: (-item[1], item[0]))
    own = zip(map(Head.parse, labelled["name"]), map(float, labelled[kind]))
    return dict([*own, *fill][:top])


def _notes(
    model: Model,
    scan: HeadScan,
    label: str,
    heads: Sequence[Head],
    drawn: Sequence[Sequence[Head]],
    draws: int,
) -> list[str]:
    notes = []
    carriers = set(scan.heads(label))
    if unlabelled := [str(head) for head in heads if head not in carriers]:
        words = (
            "do not carry the label and come"
            if unlabelled[1:]
            else ("does not carry the label and comes")
        )
        notes.append(f"{', '.join(unlabelled)} {words} next by score")
    for layer, number in sorted(Counter(head.layer for head in heads).items()):
        others = model.n_heads - number
        if others < number:
            notes.append(f"layer {layer} has {others} other heads for {number} taken out")
    if 0 < len(drawn) < draws:
        notes.append(f"there are only {len(drawn)} different random draws")
    picked = [head for draw in drawn for head in draw]
    if share := sum(head in carriers for head in picked):
        notes.append(f"{share} of the {len(picked)} heads drawn at random carry the label too")
    return notes


def _check_methods(methods: Sequence[str]) -> None:
    if not methods:
        raise InputError("methods must name at least one of zero, mean, got none")
    for method in methods:
        if method not in ("zero", "mean"):
            raise InputError(f"methods must be among zero, mean, got {method!r}")


def _probes(model: Model, rows: int, seed: int, length: int) -> list[probes.Probe]:
    made = [probes.repeated(model.vocabulary, rows=rows, length=length, bos=model.bos, seed=seed)]
    encoded = encoded_passages(model)
    if not encoded:
        return made
    shortest = min(map(len, encoded)) + (model.bos is not None)
    natural = probes.text(
        encoded, rows=rows, length=min(length * 3 // 4 + 1, shortest), bos=model.bos
    )
    return [*made, natural] if natural is not None else made


def _made_by(
    model: Model, scan: HeadScan, made: list[probes.Probe], options: dict[str, Any]
) -> dict[str, Any]:
    text = [probe for probe in made if "text" in probe.parts]
    late, early = late_and_early(text[0].tokens.shape[1] - 1) if text else (None, None)
    return Record.of_model(
        model,
        **options,
        decided_by=f"{MEASURES[0]}, {options['methods'][0]}",
        unit="nats",
        in_context_score={
            "late": [late.start, late.stop],
            "early": [early.start, early.stop],
        }
        if late and early
        else "not measured: the model has no tokenizer",
        mean="mean output over the queries of the probe itself, but each row's first",
        interval=f"95 % of {_RESAMPLES} resamples of the rows",
        scan={
            name: value
            for name, value in scan.made_by.items()
            if name in ("model", "revision", "seed", "method", "dtype", "thresholds")
        },
        probes=[probe.record() for probe in made],
    )
