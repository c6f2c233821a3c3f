"""The induction circuits of several models, measured the same way.

A circuit is an earlier head, which looks at the previous token, and an induction head, which
finds the token after an earlier copy by what the earlier head wrote there. The two are measured by
their attention, by their weights, by the model's loss without the earlier one, and by path effects
on the induction head (`interp.effects.paths`). The models may be built by hand, learned, or real.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from interp.effects.ablate import ablated, logits, losses
from interp.effects.edges import Edge, PathEffects
from interp.effects.losses import copy_queries
from interp.effects.paths import ask_of_stripe, path_effects
from interp.effects.saved import Saved
from interp.errors import InputError, Seed, Whole, checked
from interp.files import versions
from interp.heads import Head
from interp.kinds.mass import Attention
from interp.kinds.probes import Probe, repeated
from interp.kinds.scores import Thresholds, score_layer
from interp.models import Model, load_model
from interp.models.hooks import attention_patterns, run
from interp.models.stream import stream, streams
from interp.scan.columns import EFFECT
from interp.scan.plan import row_length
from interp.scan.record import Record
from interp.scan.scan import scan_heads
from interp.weights.direct import Readout
from interp.weights.folded import composition_scores, embedding, head_weights, token_sample
from interp.weights.heads import ov_copy, qk_match

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 33
"""Tokens of the row in the figure: BOS and two copies of sixteen."""

MEASURES = {
    "previous_token": "earlier head: attention on the previous token",
    "induction": "induction head: attention on its targets",
    "rest": "induction head: attention on its sink, nothing to find",
    "effect": "induction head: effect on the right token's logit",
    "K_composition": "K-composition of the two",
    "Q_composition": "Q-composition",
    "V_composition": "V-composition",
    "composition_floor": "what chance gives each",
    "K_z": "K-composition, deviations above chance",
    "Q_z": "Q-composition, deviations above chance",
    "V_z": "V-composition, deviations above chance",
    "K_rank": "rank of the earlier head by K-composition",
    "qk_match": "share of tokens that the pair matches with themselves",
    "ov_copy": "share of tokens that the induction head copies",
    "loss_chance": "loss of a guess among all tokens (nats)",
    "loss_first_copy": "loss on the first copy (nats)",
    "loss_second_copy": "loss on the second copy (nats)",
    "accuracy_second_copy": "share of right next tokens on the second copy",
    "induction_least": "induction, least over periods",
    "loss_most": "loss on the second copy, most over periods (nats)",
    "induction_without": "induction without the earlier head",
    "loss_without": "loss on the second copy without it (nats)",
    "induction_without_in_K": "induction without it in the keys alone",
    "induction_without_in_Q": "induction without it in the queries alone",
    "effect_without_in_K": "effect without it in the keys alone",
    "effect_without_in_Q": "effect without it in the queries alone",
    "effect_without_in_V": "effect without it in the values alone",
}
"""The measures of each circuit, in the order of the table."""


@dataclass(eq=False)
class Circuit:
    """One column of the comparison.

    Attributes:
        model: Its name.
        heads: The measured pair, by role: the induction head with the highest score, and the
            earlier head whose removal from its keys lowers that score most.
        measures: Values by name (see `MEASURES`); a measure that could not be taken is absent.
        left_out: Reason why, by measure.
        by_period: Measures on rows of one period each: `period`, `induction`, `loss` (nats).
        found: Scores of all induction heads and previous-token heads, by label.
        edges: Effects of every earlier head on every induction head (`interp.effects.paths`).
        patterns: Attention of the pair on one row of `SHOWN` tokens, by role.
    """

    model: str
    heads: dict[str, Head] = field(default_factory=dict)
    measures: dict[str, int | float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    by_period: list[dict[str, int | float]] = field(default_factory=list)
    found: dict[str, dict[str, float]] = field(default_factory=dict)
    edges: PathEffects = field(default_factory=PathEffects)
    patterns: dict[str, Float[Tensor, "query key"]] = field(default_factory=dict)

    def __repr__(self) -> str:
        pair = " and ".join(map(str, self.heads.values())) or "no induction head"
        names = ("induction", "previous_token", "K_composition", "loss_second_copy")
        numbers = [f"{n} {self.measures[n]:.2f}" for n in names if n in self.measures]
        return f"Circuit({self.model}: {pair}, {', '.join(numbers)})"

    def without(self, measures: Iterable[str], reason: str) -> "Circuit":
        """The circuit, with the reason for those of the measures that are absent."""
        for name in measures:
            if name not in self.measures:
                self.left_out.setdefault(name, reason)
        return self

    def to_json(self) -> dict[str, Any]:
        """The circuit as it is written, measures on top."""
        return {
            "model": self.model,
            "heads": {role: str(head) for role, head in self.heads.items()},
            **self.measures,
            "left_out": self.left_out,
            "by_period": self.by_period,
            "induction_heads": self.found.get("induction", {}),
            "previous_token_heads": self.found.get("previous token", {}),
            "edges": self.edges.to_frame().round(6).to_dict("records"),
            "patterns": {
                role: pattern.double().round(decimals=4).tolist()
                for role, pattern in self.patterns.items()
            },
        }

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Circuit":
        """The circuit that `to_json` wrote."""
        return cls(
            content["model"],
            {role: Head.parse(head) for role, head in content["heads"].items()},
            {name: content[name] for name in MEASURES if name in content},
            content["left_out"],
            content["by_period"],
            {
                "induction": content["induction_heads"],
                "previous token": content["previous_token_heads"],
            },
            PathEffects(tuple(map(Edge.of_record, content["edges"]))),
            {role: torch.tensor(pattern) for role, pattern in content["patterns"].items()},
        )


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Saved):
    """Circuits side by side.

    Attributes:
        circuits: By column, in order.
        made_by: Seed, rows, models and versions.
    """

    circuits: dict[str, Circuit]
    made_by: dict[str, Any]

    # Thousands of edges and patterns: a line for each number would double the size.
    _indent = None

    def __repr__(self) -> str:
        columns = (f"{name} {circuit!r}" for name, circuit in self.circuits.items())
        return f"Comparison({'; '.join(columns)})"

    def to_frame(self) -> "pd.DataFrame":
        """A table with a row for each measure and a column for each circuit."""
        import pandas as pd

        columns = {name: pd.Series(c.measures, dtype=float) for name, c in self.circuits.items()}
        return pd.DataFrame(columns).reindex(MEASURES)

    def to_json(self) -> dict[str, Any]:
        """The comparison as `save` writes it: `edges` are those of the last circuit."""
        circuits = {name: circuit.to_json() for name, circuit in self.circuits.items()}
        *_, last = circuits.values()
        return {
            "schema_version": 1,
            "made_by": self.made_by,
            "measures": MEASURES,
            "circuits": circuits,
            "edges": last.pop("edges"),
        }

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Comparison":
        """The comparison that `to_json` wrote, numbers as rounded there."""
        circuits = {
            name: Circuit.of_json({"edges": content["edges"], **circuit})
            for name, circuit in content["circuits"].items()
        }
        return cls(circuits, content["made_by"])


@checked
def compare_circuits(
    models: Mapping[str, Any],
    *,
    seed: Seed = 0,
    rows: Annotated[Whole, Field(ge=2)] = 8,
    progress: Callable[[str], object] | None = None,
) -> Comparison:
    """Measure the induction circuit of each model the same way.

    Args:
        models: Models by the name of their column; each a `Model`, or anything that
            `load_model` takes.
        seed: Seed of the random tokens, which each model gets from its own vocabulary.
        rows: Rows of random tokens for each measure, at least 2.
        progress: Callback, called with the name of each step.

    Returns:
        A column for each model. If a model does not allow a measure, it is left out of the
        column, with the reason.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=65)
        >>> found = interp.compare_circuits({"by hand": toy}, rows=2)
        >>> found.circuits["by hand"].heads
        {'induction': L1H5, 'previous_token': L0H3}
    """
    if not isinstance(models, Mapping) or not models:
        raise InputError(f"models must map names to models, got {type(models).__name__}")
    opened = {name: load_model(model) for name, model in models.items()}
    report = progress or (lambda step: None)
    circuits = {n: _measure(n, model, rows, seed, report) for n, model in opened.items()}
    made_by = {
        "seed": seed,
        "rows": rows,
        "models": {name: Record.identity(model) for name, model in opened.items()},
        "versions": versions(),
    }
    return Comparison(circuits, made_by)


def _measure(
    name: str, model: Model, rows: int, seed: int, progress: Callable[[str], object]
) -> Circuit:
    """Measure the induction circuit of one model; see `compare_circuits`."""
    progress(f"{name}: scanning")
    scan = scan_heads(model, rows=rows, seed=seed)
    frame, targets = scan.frame.set_index("name"), scan.heads("induction")
    draw = partial(repeated, model.vocabulary, bos=model.bos, seed=seed)
    probe = draw(rows=rows, length=row_length(model))
    circuit = Circuit(model.name)
    measures = circuit.measures
    for kind in ("induction", "previous_token"):
        label = kind.replace("_", " ")
        circuit.found[label] = {n: float(frame.at[n, kind]) for n in map(str, scan.heads(label))}
    measures["loss_chance"] = math.log(len(model.vocabulary))
    measures |= _losses(model, probe)
    if not targets:
        best = frame["induction"].dropna()
        highest = f"the highest score is {best.max():.2f}" if len(best) else "none could be scored"
        return circuit.without(MEASURES, f"no head is labelled induction, {highest}")

    head = circuit.heads["induction"] = targets[0]
    columns = {"induction": "induction", "rest": "sink", "effect": EFFECT}
    measures |= {m: float(frame.at[str(head), c]) for m, c in columns.items() if c in frame}
    progress(f"{name}: running one period at a time")
    body = row_length(model) - (model.bos is not None)
    for period in sorted({max(4, body * eighths // 8) for eighths in (1, 2, 3, 4)}):
        fixed = draw(rows=rows, length=row_length(model), period=period)
        loss = float(losses(model, fixed)["second_copy"].mean())
        score = _stripe(model, fixed, head)
        circuit.by_period.append({"period": period, "induction": score, "loss": loss})
    measures["induction_least"] = min(row["induction"] for row in circuit.by_period)
    measures["loss_most"] = max(row["loss"] for row in circuit.by_period)

    progress(f"{name}: taking earlier heads out of queries, keys and values")
    try:
        circuit.edges = path_effects(model, targets, rows=rows, seed=seed)
        feeder = Head.parse(str(circuit.edges.strongest(head, "K")[0].source))
    except InputError as error:
        circuit.without([name for name in MEASURES if "_without_in_" in name], str(error))
        earlier = frame.loc[frame["layer"] < head.layer, "previous_token"].dropna()
        if earlier.empty:
            return circuit.without(MEASURES, f"no head comes before {head}")
        feeder = Head.parse(earlier.idxmax())
    circuit.heads["previous_token"] = feeder
    measures["previous_token"] = float(frame.at[str(feeder), "previous_token"])
    for edge in circuit.edges:
        if (edge.source, edge.to) == (feeder, head):
            measures[f"effect_without_in_{edge.path}"] = edge.effect_after
            if edge.path != "V":  # Values do not change where a head looks.
                measures[f"induction_without_in_{edge.path}"] = edge.stripe_after
    with ablated(model, [feeder]):
        measures["induction_without"] = _stripe(model, probe, head)
        measures["loss_without"] = float(losses(model, probe)["second_copy"].mean())

    progress(f"{name}: reading weights")
    try:
        measures |= _by_weights(model, feeder, head)
    except InputError as error:
        circuit.without(MEASURES, str(error))
    # Attention of both heads on BOS and two copies of sixteen tokens.
    period, length = (SHOWN - 1) // 2, SHOWN - (model.bos is None)
    if model.n_ctx >= length and len(model.vocabulary) >= period:
        tokens = draw(rows=1, length=length, period=period).tokens
        seen = attention_patterns(model, tokens, sorted({h.layer for h in circuit.heads.values()}))
        for role, (layer, number) in circuit.heads.items():
            circuit.patterns[role] = seen[seen.layers.index(layer), 0, number]
    return circuit


def _losses(model: Model, probe: Probe) -> dict[str, float]:
    """Losses in nats, and how often the most likely next token is right."""
    means = {name: float(by_row.mean()) for name, by_row in losses(model, probe).items()}
    right = logits(model, probe.tokens)[:, :-1].argmax(-1).cpu() == probe.tokens[:, 1:]
    predictable = copy_queries(probe)["second_copy"]
    return {
        "loss_first_copy": means["first_copy"],
        "loss_second_copy": means["second_copy"],
        "accuracy_second_copy": float(right[predictable].double().mean()),
    }


def _stripe(model: Model, probe: Probe, head: Head) -> float:
    """A head's induction score on a probe, in the model as it is now."""
    asked = ask_of_stripe(model, probe, head.layer)
    scores = []

    def look(layer: int, attention: Attention | Tensor) -> None:
        if layer == head.layer:
            tally = score_layer(attention, asked, Thresholds()).tallies["induction"]
            scores.append(float(tally.mean[head.head]))

    see = stream if streams(model) else partial(run, layers=[head.layer])
    see(model, probe.tokens, look)
    return scores[0]


def _by_weights(model: Model, feeder: Head, head: Head) -> dict[str, int | float]:
    composed = composition_scores(model)
    pair, measures = (*feeder, *head), {"composition_floor": composed.floor}
    for kind in ("K", "Q", "V"):
        measures[f"{kind}_composition"] = float(composed.scores(kind)[pair])
        measures[f"{kind}_z"] = float(composed.z[kind][pair])
    measures["K_rank"] = int(composed.rank("K")[pair])
    weights = head_weights(model, [feeder.layer, head.layer])
    writer, reader = weights[feeder.layer], weights[head.layer]
    ids = token_sample(model)
    read = embedding(model, ids, through_mlp=True)  # MLPs of built circuits are empty.
    measures["qk_match"] = qk_match(read, writer, feeder.head, reader, head.head)
    readout = Readout(model)
    W_U = readout.W_U @ readout.tail
    return measures | {"ov_copy": ov_copy(read, reader, head.head, W_U, ids)}
