"""Causal tests of labels: the model's loss without the heads that carry a label.

`verify` ablates the strongest heads of each label together (see `interp.ablated`) and compares the
loss before and after. Ablating any heads costs something, so the same is done with random other
heads of the same layers, many times; an effect counts as the label's only if it is beyond all of
those.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from interp.effects.ablate import METHODS, measures_of
from interp.effects.ablate_map import Heads, random_draws, without
from interp.effects.losses import interval, late_and_early, next_token_losses
from interp.effects.replaced import Prompts
from interp.effects.saved import Saved
from interp.errors import Count, InputError, Seed, Whole, checked
from interp.heads import Head
from interp.kinds import probes
from interp.kinds.builtin import FORCED_WINDOW, WORDS
from interp.kinds.labels import MIXED, NOT_ENOUGH, excess
from interp.kinds.scores import Thresholds
from interp.models import Model, load_model
from interp.scan.plan import row_length, text_probe
from interp.scan.record import Record
from interp.scan.table import HeadScan, check_scan

MEASURES = ("second_copy", "first_copy", "in_context_score", "text")
"""What is compared before and after, the deciding measure first: see `ablate.losses`."""

FEW_DRAWS = 20
"""With fewer random draws a verdict is marked: they show little of what random heads can do."""


@dataclass(frozen=True)
class Effect:
    """The effect of ablating heads on one measure, in nats: after minus before.

    Attributes:
        value: Mean over rows; above 0, the model is worse without the heads.
        interval: The middle 95 % of such means over rows resampled with replacement.
        random: The same mean for each random draw of other heads.
    """

    value: float
    interval: tuple[float, ...]
    random: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """The verdict in words, with the interval.

        An effect is causal if its whole interval is beyond every random draw, and beyond 0; there
        is no effect if the whole interval is within them; else the verdict is not decided. Fewer
        than `FEW_DRAWS` draws are marked as few.
        """
        low, high = self.interval
        signed = f"{self.value:+.2f} nats [{low:+.2f}, {high:+.2f}]"
        if not self.random:
            return f"not judged: {signed}, but the same layers have no other heads to compare with"
        least, most = min(self.random), max(self.random)
        floor, ceiling = min(least, 0), max(most, 0)
        effect, random = signed, f"{least:+.2f} to {most:+.2f}"
        if low > ceiling:
            word, random = "causal", f"at most {most:.2f}"
            effect = f"costs {self.value:.2f} nats [{low:.2f}, {high:.2f}]"
        elif high < floor:
            word, random = "helps when removed", f"at most {-floor:.2f}"
            effect = f"saves {-self.value:.2f} nats [{-high:.2f}, {-low:.2f}]"
        else:
            inside = floor <= low and high <= ceiling
            word = "no effect beyond random heads" if inside else "not decided"
        few = " (few draws)" if len(self.random) < FEW_DRAWS else ""
        return f"{word}{few}: {effect}, random heads of the same layers {random}"

    def to_json(self) -> dict[str, Any]:
        """The effect as it is written."""
        effects = {"effect": self.value, "interval": [*self.interval]}
        return {"verdict": self.verdict, **effects, "random_effects": [*self.random]}


@dataclass(frozen=True)
class LabelEffects:
    """The heads of one label, and the effects of ablating them together.

    Attributes:
        heads: Heads that were ablated together, the strongest first.
        scores: The kind's score of each, in [0, 1]; None where the label has no score.
        labelled: How many of `heads`, the first ones, carry the label. The others are the next by
            score: their excess is at least half of the label's threshold.
        draws: The random heads of each draw.
        notes: Caveats.
        effects: By method (`zero`, `mean`) and measure.
    """

    heads: tuple[Head, ...] = ()
    scores: tuple[float | None, ...] = ()
    labelled: int = 0
    draws: tuple[tuple[Head, ...], ...] = ()
    notes: tuple[str, ...] = ()
    effects: dict[str, dict[str, Effect]] = field(default_factory=dict)

    @property
    def main(self) -> Effect | None:
        """The effect that decides: by the first method, on the first measure."""
        return next((e for measures in self.effects.values() for e in measures.values()), None)

    @property
    def verdict(self) -> str:
        """The verdict of the deciding effect; or why there is none."""
        return self.main.verdict if self.main else "not judged: no heads of that label"


@dataclass(frozen=True, repr=False)
class Verification(Saved):
    """The result of `interp.verify`.

    Attributes:
        before: Each measure without any ablation, mean over rows, in nats.
        labels: By label.
        made_by: Model, probes with the token ids that were run, seed, choices and versions.
    """

    before: dict[str, float]
    labels: dict[str, LabelEffects]
    made_by: dict[str, Any]

    def __repr__(self) -> str:
        verdicts = (
            f"{label}{f' {r.main.value:+.2f} nats' if r.main else ''} {r.verdict.partition(':')[0]}"
            for label, r in self.labels.items()
        )
        return f"Verification({self.made_by.get('model', 'a model')}: {', '.join(verdicts)})"

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for each label, method and measure, in nats.

        Columns: `label`, `heads`, `method`, `measure`, `effect`, `low` and `high` (the interval),
        `random_low` and `random_high` (over the random draws), `verdict`.
        """
        rows = [
            {
                "label": label,
                "heads": ", ".join(map(str, result.heads)),
                "method": method,
                "measure": measure,
                "effect": effect.value,
                **dict(zip(("low", "high"), effect.interval, strict=True)),
                "random_low": min(effect.random, default=None),
                "random_high": max(effect.random, default=None),
                "verdict": effect.verdict.partition(":")[0],
            }
            for label, result in self.labels.items()
            for method, measures in result.effects.items()
            for measure, effect in measures.items()
        ]
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """The result as `save` writes it: of each label the deciding effect on top."""
        absent = {"effect": None, "interval": None, "random_effects": []}
        labels = {
            label: {
                "verdict": result.verdict,
                "heads": [*map(str, result.heads)],
                **(result.main.to_json() if result.main else absent),
                "scores": [*result.scores],
                "labelled": result.labelled,
                "notes": [*result.notes],
                "measures": {
                    method: {name: effect.to_json() for name, effect in measures.items()}
                    for method, measures in result.effects.items()
                },
                "random_heads": [[*map(str, draw)] for draw in result.draws],
            }
            for label, result in self.labels.items()
        }
        made = {"schema_version": 1, "made_by": self.made_by}
        return {**made, "before": self.before, "labels": labels}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Verification":
        """The result that `to_json` wrote."""

        def effect(of: dict[str, Any]) -> Effect:
            return Effect(of["effect"], tuple(of["interval"]), tuple(of["random_effects"]))

        labels = {
            label: LabelEffects(
                tuple(map(Head.parse, of["heads"])),
                tuple(of["scores"]),
                of["labelled"],
                tuple(tuple(map(Head.parse, draw)) for draw in of["random_heads"]),
                tuple(of["notes"]),
                {m: {n: effect(e) for n, e in each.items()} for m, each in of["measures"].items()},
            )
            for label, of in content["labels"].items()
        }
        return cls(content["before"], labels, content["made_by"])


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

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> scan = interp.scan_heads(toy, rows=2)
        >>> found = verify(toy, scan, kinds="induction", rows=2, draws=2, methods=["zero"])
        >>> found.labels["induction"].heads
        (L1H5,)
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
    sets = [Heads(some) for label in labels for some in (chosen[label], *plans[label]) if some]
    tokens = _probes(model, rows, seed, row_length(model, length))
    runs, total = len(methods) * len(tokens), len({*sets})
    done = itertools.count()
    before: dict[str, float] = {}
    changes: dict[tuple[str, str], dict[Heads, Float[Tensor, " row"]]] = {}
    for probe in tokens:
        names = [*measures_of(torch.zeros(len(probe.tokens), probe.tokens.shape[1] - 1), probe)]
        prompts = Prompts(model, probe.tokens, partial(_losses, probe), measures=len(names))
        before |= dict(zip(names, prompts.before.mean(0).tolist(), strict=True))
        for method in methods:
            earlier = next(done) * total

            def report(part: int, of: int, earlier: int = earlier) -> None:
                if progress is not None:
                    progress(earlier + part, runs * of)

            found = without(prompts, sets, method, seed, report)
            for index, name in enumerate(names):
                changes[method, name] = {some: all[:, index] for some, all in found.items()}
    before = {name: before[name] for name in MEASURES if name in before}
    results = {}
    for label, heads in chosen.items():
        effects = {
            method: {
                name: Effect(
                    float(changes[method, name][Heads(heads)].mean()),
                    tuple(interval(changes[method, name][Heads(heads)][:, None], seed)),
                    tuple(float(changes[method, name][Heads(d)].mean()) for d in plans[label]),
                )
                for name in before
            }
            for method in (methods if heads else ())
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
    of_scan = ("model", "revision", "digest", "seed", "method", "dtype", "thresholds")
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
    return Verification(before, results, made_by)


def _losses(
    probe: probes.Probe, logits: Tensor, tokens: Int[Tensor, "row pos"]
) -> Float[Tensor, "row measure"]:
    by_query = next_token_losses(logits, tokens).cpu()
    return torch.stack([*measures_of(by_query, probe).values()], -1)


def labels_in(scan: HeadScan | None = None) -> list[str]:
    """Every label that a head can have, and the other labels of heads of `scan`."""
    present = set() if scan is None else {label for row in scan.frame["labels"] for label in row}
    words = WORDS if scan is None else scan.words
    return [*words, *sorted(present - {*words, MIXED, NOT_ENOUGH, FORCED_WINDOW})]


def _strongest(scan: HeadScan, label: str, top: int) -> dict[Head, float | None]:
    """The heads to ablate for `label` with their scores; empty if no head carries it."""
    labelled = scan.having(label)
    kind = label.replace(" ", "_")
    if kind not in scan.kinds or f"{kind}_chance" not in scan.frame or not len(labelled):
        return {Head.parse(name): None for name in labelled["name"].head(top)}
    needed = scan.made_by.get("thresholds", {}).get(kind, Thresholds().of(scan.kinds[kind]))
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
    natural = text_probe(model, rows, length * 3 // 4 + 1, model.bos)
    return [random] if natural is None else [random, natural]
