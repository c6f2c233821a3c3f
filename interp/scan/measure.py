"""Run the probes and score every layer as it attends."""

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Literal, get_args

import torch

from interp.errors import InputError, quoted
from interp.kinds.kind import KINDS
from interp.kinds.mass import Attention, FromQK
from interp.kinds.probes import Probe
from interp.kinds.scores import (
    VALUE_WEIGHTED,
    LayerScores,
    Questions,
    Thresholds,
    ask,
    ask_elsewhere,
    score_layer,
)
from interp.scan.columns import AT_DISTANCE, EFFECT
from interp.scan.plan import AT_ONCE

if TYPE_CHECKING:
    from interp.models import Model
    from interp.weights.direct import Readout

LOG = logging.getLogger("interp")

NULLS = {"repeated": "shuffled", "random": "elsewhere"}
"""For a part of a probe, the part that is its null."""

Method = Literal["stream", "hooks"]
"""How attention is read: without patterns, or as the patterns of one layer at a time."""

_SIZE = 1 << 26
"""Bytes that one layer's patterns may take in one batch of rows."""


def method_for(model: "Model", method: str) -> Method:
    """`method`, or `hooks` for a model that cannot be streamed."""
    from interp.models.stream import FUSED_ON, streams

    if method not in get_args(Method):
        raise InputError(
            f"method must be one of {', '.join(get_args(Method))}, got {quoted(method)}"
        )
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
    on_text: str,
    readout: "Readout | None",
    progress: Callable[[int, int], None] | None,
) -> dict[str, dict[int, list[LayerScores]]]:
    """Run the probes and score each layer: `[part][layer]`, a list by batch.

    Args:
        model: Model to run.
        probes: Token rows; each part is scored for its own kinds (`asked_of`).
        thresholds: Widths and least numbers of queries.
        method: Method from `method_for`.
        on_text: Part that is scored for entropy and distance too.
        readout: Readout for effects on the logits; they are left out without one.
        progress: Function called with (layers done, layers in all).
    """
    batches = [
        batch for probe in probes for batch in probe.split(rows_at_once(model, probe, method))
    ]
    done, total = 0, len(batches) * model.n_layers

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    scores: dict[str, dict[int, list[LayerScores]]] = {}
    for batch in batches:
        found = _score_batch(model, batch, thresholds, method, on_text, readout, step)
        for part, by_layer in found.items():
            for layer, layer_scores in by_layer.items():
                scores.setdefault(part, {}).setdefault(layer, []).append(layer_scores)
    return scores


def _score_batch(
    model: "Model",
    batch: Probe,
    thresholds: Thresholds,
    method: Method,
    on_text: str,
    readout: "Readout | None",
    step: Callable[[], None],
) -> dict[str, dict[int, LayerScores]]:
    from interp.models.hooks import run
    from interp.models.stream import stream
    from interp.weights.direct import StripeEffects, value_norms

    questions = _questions(model, batch, thresholds, on_text)
    scores: dict[str, dict[int, LayerScores]] = {part: {} for part in batch.parts}
    effects = None
    if readout is not None and "repeated" in batch.parts:
        effects = StripeEffects(readout, batch.tokens.to(model.device))

    def score(layer: int, attention: Attention | torch.Tensor) -> None:
        window = model.windows[layer]
        if isinstance(attention, FromQK) and attention.v is not None and readout is not None:
            if on_text in batch.parts:
                attention.norms = value_norms(attention.v, readout.W_O(layer))
            if effects is not None:
                asked = questions["repeated", window]
                effects.look(layer, attention, asked.keys["induction"], asked.fit)
        for part in batch.parts:
            scores[part][layer] = score_layer(attention, questions[part, window], thresholds)
        step()

    if method == "hooks":
        run(model, batch.tokens, score)
    elif readout is None or effects is None:
        stream(model, batch.tokens, score)
    else:
        with readout.watching() as scales:
            stream(model, batch.tokens, score)
        for layer, tally in effects.tallies(scales[0]).items():
            scores["repeated"][layer].tallies[EFFECT] = tally
    return scores


def _questions(
    model: "Model", batch: Probe, thresholds: Thresholds, on_text: str
) -> dict[tuple[str, int | None], Questions]:
    """What to score, for each part of the batch and each window that a layer has."""
    tokens = (batch.tokens if batch.asked is None else batch.asked).to(model.device)
    questions = {}
    for part, queries in batch.parts.items():
        for window in set(model.windows):
            asked = ask(
                tokens,
                counted=queries.to(model.device),
                special=model.special,
                window=window,
                thresholds=thresholds,
                kinds=asked_of(part),
                causal=model.direction == "causal",
                statistics=part == on_text,
            )
            is_null = part in NULLS.values()
            questions[part, window] = ask_elsewhere(asked, seed=0) if is_null else asked
    return questions


def asked_of(part: str) -> set[str]:
    """The kinds that are scored on a part of a probe."""
    if part.startswith(AT_DISTANCE):
        return {"induction"}
    idle = {name for name, kind in KINDS.items() if kind.idle}
    if part in ("random", "elsewhere"):
        return idle
    return set(KINDS) - idle if part in ("repeated", "shuffled") else set(KINDS)


def rows_at_once(model: "Model", probe: Probe, method: Method) -> int:
    """Rows of a probe that run in one batch."""
    length = probe.tokens.shape[1]
    rows = AT_ONCE // length
    if method == "hooks":
        rows = min(rows, _SIZE // (4 * model.n_heads * length**2))
    return max(1, rows)


def readout_of(
    model: "Model", method: Method, quick: bool
) -> tuple["Readout | None", list[float], dict[str, str]]:
    """The readout and the copying score of every head.

    If they cannot be had, the columns that are left out, and why.
    """
    from interp.weights.direct import Readout

    columns = (EFFECT, f"text_{VALUE_WEIGHTED}", "ov_copying")
    if quick:
        return None, [], dict.fromkeys(("null", *columns), "a quick scan was asked for")
    if method == "hooks":
        return None, [], dict.fromkeys(columns, "patterns alone were read")
    try:
        readout = Readout(model)
        readout.check()
        return readout, readout.copying().flatten().tolist(), {}
    except InputError as error:
        why = str(error)
    except Exception as error:
        # An architecture may differ in any way; scores do not depend on it.
        why = f"this architecture's readout is not known ({type(error).__name__})"
    return None, [], dict.fromkeys(columns, why)


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
