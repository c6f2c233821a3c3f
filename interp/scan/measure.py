"""Run the probes and score every layer as it attends."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import count, product
from typing import TYPE_CHECKING, Literal, get_args

import torch

from interp.errors import InputError, quoted
from interp.kinds.builtin import KINDS
from interp.kinds.kind import Kind
from interp.kinds.mass import Attention, FromQK
from interp.kinds.preferred import Fit, Preferred
from interp.kinds.probes import Probe
from interp.kinds.scores import (
    VALUE_WEIGHTED,
    LayerScores,
    OfHeads,
    Thresholds,
    ask,
    ask_elsewhere,
    score_layer,
)
from interp.kinds.targets import Tokens, aligned
from interp.scan.columns import AT_DISTANCE, EFFECT
from interp.scan.plan import AT_ONCE, framed, text_probe

if TYPE_CHECKING:
    from interp.models import Model
    from interp.weights.direct import Readout

LOG = logging.getLogger("interp")

Method = Literal["stream", "hooks"]
"""How attention is read: without patterns, or as the patterns of one layer at a time."""

MOST_ROWS = 64
"""Most rows of the built-in text that are run."""

_SIZE = 1 << 26  # Bytes that one layer's patterns may take in one batch of rows.


def method_for(model: "Model", method: str) -> Method:
    """`method`, or `hooks` for a model that cannot be streamed."""
    from interp.models.stream import FUSED_ON, streams

    if method not in get_args(Method):
        raise InputError(f"method must be one of stream, hooks, got {quoted(method)}")
    if method == "hooks":
        return "hooks"
    if not streams(model):
        LOG.info("%s cannot be streamed: reading patterns, one layer at a time", model.name)
        return "hooks"
    if model.device.type not in FUSED_ON:
        LOG.info("no fused kernel returns log-sum-exps on %s: using tiles", model.device.type)
    return "stream"


def measure(
    model: "Model",
    probes: list[Probe],
    thresholds: Thresholds,
    method: Method,
    on_text: str = "",
    readout: "Readout | None" = None,
    kinds: Mapping[str, Kind] = KINDS,
    progress: Callable[[int, int], None] | None = None,
    *,
    explained: bool = False,
    of_heads: Callable[[int], OfHeads] | None = None,
) -> dict[str, dict[int, list[LayerScores]]]:
    """Run the probes and score each layer: `[part][layer]`, a list by batch.

    Kinds that read texts are left out for a model without a tokenizer. The part `on_text` is scored
    for entropy and distance too. Without a readout, effects on the
    logits are left out. `progress` receives (layers done, layers in all). With `explained` the
    part `text` is scored for the explained share too, and with the targets of a layer's heads if
    `of_heads` gives them.
    """
    from interp.models.hooks import run
    from interp.models.stream import stream
    from interp.weights.direct import StripeEffects, value_norms
    from interp.weights.linear import linear_pass

    batches = [
        batch for probe in probes for batch in probe.split(rows_at_once(model, probe, method))
    ]
    scores: dict[str, dict[int, list[LayerScores]]] = {}
    done = count(1)

    def score_batch(batch: Probe) -> dict[tuple[str, int], LayerScores]:
        questions, found, effects = {}, {}, None
        tokens = (batch.tokens if batch.asked is None else batch.asked).to(model.device)
        scored = {n: kind for part in batch.parts for n, kind in asked_of(part, kinds).items()}
        texts, _ = texts_for(model, tokens, scored)
        for part, window in product(batch.parts, set(model.windows)):
            asked = ask(
                tokens,
                counted=batch.parts[part].to(model.device),
                apart=None if batch.apart is None else batch.apart.to(model.device),
                special=model.special,
                window=window,
                thresholds=thresholds,
                kinds=asked_of(part, kinds),
                texts=texts,
                causal=model.direction == "causal",
                statistics=part == on_text,
            )
            is_null = any(part == kind.null_part for kind in kinds.values())
            asked = replace(asked, explaining=explained and part == "text")
            questions[part, window] = ask_elsewhere(asked, seed=0) if is_null else asked
        if readout is not None and "repeated" in batch.parts and "induction" in kinds:
            effects = StripeEffects(readout, batch.tokens.to(model.device))

        def score(layer: int, attention: Attention | torch.Tensor) -> None:
            window = model.windows[layer]
            if isinstance(attention, FromQK) and attention.v is not None and readout is not None:
                if on_text in batch.parts and layer in readout.grams:
                    attention.norms = value_norms(attention.v, readout.grams[layer])
                if effects is not None:
                    asked = questions["repeated", window]
                    effects.look(layer, attention, asked.keys["induction"], asked.fit)
            for part in batch.parts:
                own = of_heads and of_heads(layer)
                asked = questions[part, window]
                found[part, layer] = score_layer(attention, asked, thresholds, own)
            number = next(done)
            if progress is not None:
                progress(number, len(batches) * model.n_layers)

        if method == "hooks":
            run(model, batch.tokens, score)
        elif readout is None or effects is None:
            stream(model, batch.tokens, score)
        else:
            run_linear = linear_pass(model, batch.tokens, score, readout.norms)
            for layer, tally in effects.tallies(run_linear).items():
                found["repeated", layer].tallies[EFFECT] = tally
        return found

    for batch in batches:
        for (part, layer), layer_scores in score_batch(batch).items():
            scores.setdefault(part, {}).setdefault(layer, []).append(layer_scores)
    return scores


def preferred_keys(
    model: "Model",
    tested: list[Probe],
    length: int,
    n_bos: int,
    thresholds: Thresholds,
    method: Method,
    kinds: Mapping[str, Kind],
) -> Preferred:
    """The keys that each head prefers, fitted on the built-in text after the rows of `tested`.

    Raises:
        InputError: If no text is left, or the model has no embedding of its tokens.
    """
    skipped = sum(len(probe.tokens) for probe in tested if "text" in probe.parts)
    rows = text_probe(model, MOST_ROWS, length, model.bos if n_bos else None)
    if rows is None or len(rows.tokens) <= skipped:
        raise InputError("explained must have text to fit preferred keys on, got none: use rows")
    (probe,) = framed(
        model, [Probe(rows.tokens[skipped:], {"text": rows.parts["text"][skipped:]})], n_bos
    )
    fit = Fit(probe.tokens, model.n_layers, model.n_heads)
    measure(
        *(model, [probe], thresholds, method, "", None, kinds),
        explained=True,
        of_heads=lambda layer: partial(fit.add, layer),
    )
    return fit.preferred(model.plain.get_input_embeddings().weight.detach().float().cpu())


def texts_for(
    model: "Model", tokens: Tokens, kinds: Mapping[str, Kind]
) -> tuple[list[list[str]] | None, dict[str, str]]:
    """The text of each token, if a kind reads it; the kinds that cannot be scored, and why."""
    from interp.models.plain import texts_of

    reading = [name for name, kind in kinds.items() if kind.takes("texts")]
    if model.tokenizer is None:
        return None, dict.fromkeys(reading, "the model has no tokenizer")
    return aligned(texts_of(model, tokens), tokens) if reading else None, {}


def asked_of(part: str, kinds: Mapping[str, Kind] = KINDS) -> dict[str, Kind]:
    """The kinds that are scored on a part of a probe."""
    if part.startswith(AT_DISTANCE):
        return {name: kind for name, kind in kinds.items() if name == "induction"}
    if part in ("text", "prompt"):
        return dict(kinds)
    return {name: kind for name, kind in kinds.items() if part in (kind.part, kind.null_part)}


def rows_at_once(model: "Model", probe: Probe, method: Method) -> int:
    """Rows of a probe that run in one batch."""
    length = probe.tokens.shape[1]
    most = _SIZE // (4 * model.n_heads * length**2) if method == "hooks" else AT_ONCE
    return max(1, min(AT_ONCE // length, most))


def readout_of(
    model: "Model", method: Method, quick: bool
) -> tuple["Readout | None", list[float], dict[str, str]]:
    """The readout and the copying score of every head; else the columns left out, and why."""
    from interp.weights.direct import Readout

    by_values = (f"text_{VALUE_WEIGHTED}", "ov_copying")
    columns = (EFFECT, *by_values)
    if quick:
        return None, [], dict.fromkeys(("null", *columns), "a quick scan was asked for")
    if method == "hooks":
        given = ": give the model that the bridge was built from" if model.plain is None else ""
        return None, [], dict.fromkeys(columns, f"patterns alone were read{given}")
    readout = None
    try:
        readout = Readout(model)
        readout.check()
        columns = by_values
        return readout, readout.copying().flatten().tolist(), {}
    except Exception as error:  # An architecture may differ in any way.
        unknown = f"this architecture's readout is not known ({type(error).__name__})"
        why = str(error) if isinstance(error, InputError) else unknown
        is_checked = columns == by_values
        return readout if is_checked else None, [], dict.fromkeys(columns, why)


def by_definition(model: "Model", probe: Probe, names: Collection[str]) -> dict[str, list[float]]:
    """Scores by published definitions for every head in order, from the patterns of a few rows."""
    from interp.models.hooks import run
    from interp.patterns.definitions import scores_by_definition

    found: dict[str, list[float]] = {name: [] for name in names}
    tokens = probe.tokens[: rows_at_once(model, probe, "hooks")].to(model.device)

    def score(layer: int, pattern: torch.Tensor) -> None:
        scores = scores_by_definition(pattern, tokens, names, learned_sinks=model.learned_sinks)
        for name, values in scores.items():
            found[name] += values.tolist()

    if names:
        run(model, tokens, score)
    return found
