"""The circuit of a task: the few edges of a model that bring about its answer.

Every source of the residual stream (the embedding, each head, each MLP) is joined to every target
that reads it later (queries, keys and values of heads, MLPs, the logits): `interp.effects.wiring`.

**Scores.** The score of an edge estimates how much of the metric's difference between the clean and
the corrupted run it carries (edge attribution patching with integrated gradients, EAP-IG on inputs:
Syed et al. 2023, arXiv 2310.10348; Hanna et al. 2024, arXiv 2403.17806):

    score(u, v) = sum over positions of (output_u clean - output_u corrupted) . mean of dm / dx_v

x_v is the stream that v reads, and the mean is over runs whose embedding is between the corrupted
and the clean one, at the midpoints of equal steps. With many steps the scores of the edges that
leave the embedding sum to the metric's difference.

**Faithfulness.** A circuit C is the edges of the largest scores in size that are on a way from the
embedding to the logits. The model runs with every other edge ablated: its target reads another
output of its source, that of the corrupted prompt (`counterfactual`), its mean over the clean
prompts at the same position (`mean`), or 0 (`zero`).

    f(C) = (m(C) - m(no edges)) / (m(all edges) - m(no edges))

for the shares of edges in `SHARES`. CMD is the area of |1 - f| over the share of edges, CPR that of
f, by trapezoids (Mueller et al. 2025, MIB, arXiv 2504.13151; its grid too). What is found depends
on the ablation (Miller et al. 2024, arXiv 2407.08734), so all three are measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, product
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from interp.effects.head_effects import ids_as_text
from interp.effects.metrics import Metric, bound, logit_difference, name_of
from interp.effects.saved import Saved
from interp.effects.tasks import Task, paired_tokens
from interp.effects.wiring import Ran, Wiring
from interp.errors import Count, InputError, Seed, checked, quoted
from interp.files import plain_rows
from interp.kinds.evidence import resampled
from interp.models import Model, load_model
from interp.models.rows import rows_by_length
from interp.scan.record import Record

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of all edges that circuits have: the grid of MIB."""

ABLATIONS = ("counterfactual", "mean", "zero")

_CLOSE = 0.2
"""How far from 1 the faithfulness of the circuit that is kept may be."""

_NAMES = "source", "target", "path"

_RANDOM = 20
"""Prompts at most on which random edges are measured."""

_TOKENS = 256
"""Tokens that run at once, if a prompt is not longer: every source has an output at each."""


@dataclass(frozen=True, eq=False, repr=False)
class Circuit(Saved):
    """The edges of a model with their scores for a task, from `interp.find_circuit`.

    Attributes:
        frame: Table of the edges, as `to_frame` returns it.
        faithfulness: Table of the faithfulness of circuits of several sizes. Columns: `ablation`,
            `share` of all edges, `edges`, `connected` (of them, on a way from the embedding to the
            logits), `faithfulness`, `random`, that of as many random edges, and the overlap of this
            size: `jaccard`, `jaccard_low`, `jaccard_high`.
        jaccard: Mean overlap of two circuits of the kept size, each from a resample of the prompts
            (edges in both over edges in either; Méloux et al. 2025, arXiv 2510.00845).
        jaccard_low, jaccard_high: The middle 95 % of these overlaps.
        made_by: Model, prompts, metric, settings, versions.

    Example:
        >>> import torch
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> pairs = torch.tensor([[0, 5, 6, 7, 5]]), torch.tensor([[0, 9, 6, 7, 5]])
        >>> metric = interp.logit_difference(right=[6], wrong=[7])
        >>> interp.find_circuit(toy, pairs, metric, steps=1).to_frame()["source"].nunique() > 9
        True
    """

    frame: pd.DataFrame
    faithfulness: pd.DataFrame
    jaccard: float
    jaccard_low: float
    jaccard_high: float
    made_by: dict[str, Any] = field(default_factory=dict)
    _indent = None

    def __repr__(self) -> str:
        kept = self.frame.loc[self.frame["kept"]]
        edges = zip(*(kept[name][:3] for name in _NAMES))
        strongest = (f"{source} to {target} {path}".strip() for source, target, path in edges)
        return (
            f"Circuit({self.made_by['model']}: {len(kept)} of {len(self.frame)} edges kept; CMD"
            f" {self.cmd[ABLATIONS[0]]:.3f}, {ABLATIONS[0]}; Jaccard {self.jaccard:.2f}"
            f" [{self.jaccard_low:.2f}, {self.jaccard_high:.2f}];"
            f" strongest: {', '.join(strongest)})"
        )

    @property
    def cmd(self) -> pd.Series:
        """The area of `|1 - faithfulness|` over the share of edges, by ablation; 0 is best."""
        return self._area(lambda faithfulness: abs(1 - faithfulness))

    @property
    def cpr(self) -> pd.Series:
        """The area of faithfulness over the share of edges, by ablation."""
        return self._area(lambda faithfulness: faithfulness)

    def _area(self, height: Callable[[np.ndarray], np.ndarray]) -> pd.Series:
        areas = {
            how: np.trapezoid(height(rows["faithfulness"].to_numpy()), rows["share"].to_numpy())
            for how, rows in self.faithfulness.groupby("ablation", sort=False)
        }
        return pd.Series(areas)

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for each edge, the largest score in size first.

        Columns: `source`, `target`, `path` (`q`, `k` or `v` of a head, empty for others; heads of a
        group share keys and values, such as those of `L5KV1`), `score` in the metric's unit, and
        `kept`, whether it is in the circuit.
        """
        return self.frame.copy()

    def to_json(self) -> dict[str, Any]:
        """The result as `save` writes it."""
        edges = dict[str, Any](self.frame.to_dict("list"))
        for name in _NAMES:  # Thousands of edges share a few names.
            codes, names = pd.factorize(self.frame[name])
            edges[name] = {"names": [*names], "codes": codes.tolist()}
        return {
            "made_by": self.made_by,
            "jaccard": [self.jaccard, self.jaccard_low, self.jaccard_high],
            "faithfulness": plain_rows(self.faithfulness),
            "edges": {**edges, "kept": self.frame["kept"].to_numpy().nonzero()[0].tolist()},
        }

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Circuit":
        """The result that `to_json` wrote."""
        edges = dict(content["edges"])
        for name in _NAMES:
            edges[name] = np.array(edges[name]["names"], object)[edges[name]["codes"]]
        table = pd.DataFrame({**edges, "kept": False})
        table.loc[edges["kept"], "kept"] = True
        faithfulness = pd.DataFrame(content["faithfulness"])
        measured = {name: float for name in faithfulness.columns[4:]}
        return cls(
            table, faithfulness.astype(measured), *content["jaccard"], made_by=content["made_by"]
        )


@checked
def find_circuit(
    model: Any,
    task: Task | tuple[Any, Any],
    metric: Metric | None = None,
    *,
    steps: Count = 5,
    share: Annotated[float, Field(gt=0, le=1)] | None = None,
    draws: Count = 100,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Circuit:
    """The edges of a model that carry a metric from clean prompts, rather than corrupted ones.

    Edges get scores from gradients, and circuits of several sizes are run with every other edge
    ablated; see `interp.effects.circuit`.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes; causal, and one whose layers
            add the outputs of their heads to the residual stream.
        task: Task, such as `interp.tasks.ioi(model, 100)`, or `(clean, corrupted)` prompts.
        metric: Metric, as for `interp.patch`; the task's `logit_difference` if left out.
        steps: Steps of the integrated gradients.
        share: Share of all edges that the circuit keeps, by score; if left out, the smallest of
            `SHARES` whose faithfulness is within 0.2 of 1 (counterfactual ablation).
        draws: Pairs of resamples of the prompts for the overlap.
        seed: Seed of the resamples and of the random edges.
        progress: Callback, called with (groups of prompts done, groups in all).

    Returns:
        A `Circuit`: all edges with their scores, those that are kept, the faithfulness of circuits
        of ten sizes under three ablations next to as many random edges (on 20 prompts at most), and
        the overlap of circuits of resampled prompts.

    Raises:
        InputError: If the prompts of a pair differ in their number of tokens, the metric does not
            differ between the clean and the corrupted run, or a layer cannot be split into edges.

    Example:
        >>> import torch
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> pairs = torch.tensor([[0, 5, 6, 7, 5]]), torch.tensor([[0, 9, 6, 7, 5]])
        >>> circuit = interp.find_circuit(toy, pairs, interp.logit_difference(right=[6], wrong=[7]))
        >>> edges = circuit.to_frame()
        >>> edges.loc[edges["kept"] & (edges["path"] == "k"), ["source", "target"]].values.tolist()
        [['L0H3', 'L1H5']]
    """
    model = load_model(model)
    clean, corrupted = (task.clean, task.corrupted) if isinstance(task, Task) else task
    if metric is None:
        metric = logit_difference(task if isinstance(task, Task) else None)
    pairs = Pairs(model, *paired_tokens(model, clean, corrupted), bound(metric, model))
    wiring, total = pairs.wiring, 2 * len(pairs.groups)
    done = count(1)

    def tell() -> None:
        if progress is not None:
            progress(next(done), total)

    scores = pairs.scores(steps, done=tell)
    if not (pairs.clean - pairs.corrupted).mean():
        raise InputError(
            "metric must differ between clean and corrupted prompts on average, got no difference"
        )
    order = scores.mean(0).abs().argsort(descending=True, stable=True)
    generator = torch.Generator().manual_seed(seed)
    random = torch.randperm(len(order), generator=generator)
    sizes = [max(1, round(each * len(order))) for each in SHARES]
    frame = pairs.faithfulness([(order[:size], random[:size]) for size in sizes], done=tell)
    if share is None:
        counterfactual = zip(SHARES, frame["faithfulness"], strict=False)
        share = next(each for each, f in counterfactual if abs(1 - f) <= _CLOSE)
    size = max(1, round(share * len(order)))
    kept = wiring.connected(pairs.mask(order[:size]))[wiring.edges]
    sources, targets = wiring.edges.nonzero(as_tuple=True)
    table = pd.DataFrame(
        {
            "source": [wiring.sources[i] for i in sources.tolist()],
            "target": [wiring.targets[i][0] for i in targets.tolist()],
            "path": [wiring.targets[i][1] for i in targets.tolist()],
            "score": [float(f"{score:.6g}") for score in scores.mean(0).tolist()],
            "kept": kept.tolist(),
        }
    )
    overlaps = _overlaps(scores, [*sizes, size], draws, seed)
    ends = overlaps.quantile(torch.tensor([0.025, 0.975], dtype=torch.double), dim=0)
    *of_sizes, of_kept = torch.stack([overlaps.mean(0), *ends], 1).tolist()
    frame[["jaccard", "jaccard_low", "jaccard_high"]] = of_sizes * len(ABLATIONS)
    made_by = Record.of_model(
        model,
        metric=name_of(metric),
        clean_mean=float(pairs.clean.mean()),
        corrupted_mean=float(pairs.corrupted.mean()),
        steps=steps,
        share=share,
        seed=seed,
        n_layers=model.n_layers,
        group=wiring.group,
        random=f"as many random edges, on {min(_RANDOM, len(scores))} prompts",
        jaccard=f"{draws} pairs of circuits from resamples of the prompts",
        prompts=ids_as_text(pairs.tokens),
    )
    table = table.iloc[order.numpy()].reset_index(drop=True)
    return Circuit(table, frame, *of_kept, made_by=made_by)


def _overlaps(
    scores: Float[Tensor, "prompt edge"], sizes: Sequence[int], draws: int, seed: int
) -> Float[Tensor, "draw size"]:
    """Edges in both over edges in either of the largest, for pairs of resamples of the prompts."""
    times, largest = resampled(len(scores), 2 * draws, seed).float(), torch.tensor(sizes)
    overlaps = []
    for pair in times.split(2):
        ranks = (pair @ scores).abs().argsort(descending=True).argsort()
        both = (ranks.amax(0)[:, None] < largest).sum(0).double()
        overlaps.append(both / (2 * largest - both))
    return torch.stack(overlaps)


class Pairs:
    """Clean and corrupted prompts with a metric, in runs of a `Wiring`.

    Edges are numbered by source, then target.

    Attributes:
        wiring: Sources, targets and edges of the model.
        tokens: Token ids of the clean prompts.
        groups: Numbers of prompts of equal length, and their clean and corrupted tokens.
        clean: Metric of each clean prompt, after `scores`.
        corrupted: Metric of each corrupted prompt, after `scores`.
    """

    def __init__(
        self,
        model: Model,
        clean: Int[Tensor, "batch pos"],
        corrupted: Int[Tensor, "batch pos"],
        metric: Metric,
    ) -> None:
        self.wiring, self.tokens, self._metric = Wiring(model), clean, metric
        self._only_last = bool(getattr(metric, "last_only", False))
        self.groups = [
            (rows, clean[rows, :size], corrupted[rows, :size])
            for (size,), of_size in rows_by_length(clean).items()
            for rows in torch.tensor(of_size).split(max(1, _TOKENS // size))
        ]
        self.clean, self.corrupted = torch.full((2, len(clean)), torch.nan, dtype=torch.double)
        self._mean = torch.empty(0)

    def mask(self, edges: Int[Tensor, " edge"]) -> Bool[Tensor, "source target"]:
        """Some edges, as `Wiring.run` takes them."""
        some = torch.zeros(int(self.wiring.edges.sum()), dtype=torch.bool)
        some[edges] = True
        return torch.zeros_like(self.wiring.edges).masked_scatter(self.wiring.edges, some)

    def measured(self, rows: Tensor, tokens: Tensor, **options: Any) -> tuple[Ran, Tensor]:
        """A run of some prompts, and the metric of each."""
        ran = self.wiring.run(tokens, only_last=self._only_last, **options)
        length = 1 if self._only_last else self.tokens.shape[1]
        every = ran.logits.new_full((len(self.tokens), length, ran.logits.shape[-1]), torch.nan)
        every[rows, : ran.logits.shape[1]] = ran.logits
        values = self._metric(every, self.tokens)[rows]
        if not values.isfinite().all():
            raise InputError(f"metric must be finite, got {quoted(values.tolist())}")
        return ran, values

    def scores(
        self,
        steps: int,
        *,
        places: Sequence[float] | None = None,
        done: Callable[[], None] = lambda: None,
    ) -> Float[Tensor, "prompt edge"]:
        """The score of each edge for each prompt, from gradients at `steps` midpoints.

        `places` are other places of the gradients, from 0 (corrupted) to 1 (clean).
        """
        places = [(step + 0.5) / steps for step in range(steps)] if places is None else places
        length = self.tokens.shape[1]
        scores = torch.empty(len(self.tokens), int(self.wiring.edges.sum()))
        sums, counts = torch.zeros(()), torch.zeros(length)
        for rows, *both in self.groups:
            (clean, one), (other, two) = (self.measured(rows, tokens) for tokens in both)
            self.clean[rows], self.corrupted[rows] = one.double().cpu(), two.double().cpu()
            size, tokens = both[0].shape[1], both[0]
            assert clean.outputs is not None
            assert other.outputs is not None
            away = pad(clean.outputs.sum(1), (0, 0, 0, length - size))
            sums, counts[:size] = sums + away, counts[:size] + len(rows)
            change = clean.outputs - other.outputs
            slopes: list[Any] = []
            inputs: list[tuple[slice, Tensor]] = []
            for place in places:
                embedding = other.outputs[0] + place * change[0]
                ran, values = self.measured(rows, tokens, embedding=embedding, gradients=True)
                inputs = ran.inputs
                found = torch.autograd.grad(values.sum(), [x for _, x in inputs])
                slopes = (
                    [sum(both) for both in zip(slopes, found, strict=True)] if slopes else [*found]
                )
            by_edge = change.new_zeros(len(rows), *self.wiring.edges.shape)
            for (targets, _), slope in zip(inputs, slopes, strict=True):
                seen = int(self.wiring.edges[:, targets.start].sum())
                part = torch.einsum("sbpd,tbpd->bst", change[:seen], slope)
                by_edge[:, :seen, targets] = part / len(places)
            scores[rows] = by_edge[:, self.wiring.edges].cpu()
            done()
        self._mean = sums / counts[:, None]
        return scores

    def faithfulness(
        self,
        circuits: Sequence[tuple[Tensor, Tensor]],
        *,
        done: Callable[[], None] = lambda: None,
    ) -> pd.DataFrame:
        """The `Circuit.faithfulness` of sets of edges, each with random edges, after `scores`."""
        wiring, none = self.wiring, torch.zeros_like(self.wiring.edges)
        masks = [none, *(wiring.connected(self.mask(each)) for both in circuits for each in both)]
        is_random = [False, *[False, True] * len(circuits)]
        shape = len(ABLATIONS), len(masks), len(self.tokens)
        values = torch.full(shape, torch.nan, dtype=torch.double)
        for rows, clean, corrupted in self.groups:
            mean = self._mean[:, None, : clean.shape[1]].expand(-1, len(rows), -1, -1)
            counterfactual = wiring.run(corrupted).outputs
            assert counterfactual is not None
            others = counterfactual, mean, torch.zeros_like(mean)
            for (how, other), (at, mask) in product(enumerate(others), enumerate(masks)):
                some = rows < _RANDOM if is_random[at] else rows >= 0
                if mask.equal(wiring.edges):
                    values[how, at, rows[some]] = self.clean[rows[some]]
                elif at and not mask.any():
                    values[how, at, rows[some]] = values[how, 0, rows[some]]
                elif some.any():
                    changed = {"kept": mask, "others": other[:, some]}
                    _, found = self.measured(rows[some], clean[some], **changed)
                    values[how, at, rows[some]] = found.double().cpu()
            done()
        table = []
        for how, name in enumerate(ABLATIONS):
            for i, (edges, _) in enumerate(circuits):
                each = {"ablation": name, "share": len(edges) / int(wiring.edges.sum())}
                each |= {"edges": len(edges), "connected": int(masks[2 * i + 1].sum())}
                for kind, at in (("faithfulness", 2 * i + 1), ("random", 2 * i + 2)):
                    known = ~values[how, at].isnan()
                    empty = values[how, 0, known].mean()
                    up = values[how, at, known].mean() - empty
                    each[kind] = float(up / (self.clean[known].mean() - empty))
                table.append(each)
        return pd.DataFrame(table)
