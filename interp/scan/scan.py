"""Find out what every head of a model does: `scan_heads`."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, get_args

import torch

from interp.errors import InputError, truth, whole, whole_seed
from interp.kinds import evidence, probes
from interp.kinds.alibi import name_what_slopes_do
from interp.kinds.kind import KINDS, kinds_of
from interp.kinds.labels import label_heads, why_not_measured, with_sink_named
from interp.kinds.mass import Attention, FromQK, Tally
from interp.kinds.scores import (
    STATISTICS,
    VALUE_WEIGHTED,
    LayerScores,
    Questions,
    Thresholds,
    as_thresholds,
    ask,
    ask_elsewhere,
    score_layer,
)
from interp.scan.columns import AT_DISTANCE, DEFINED, EFFECT
from interp.scan.plan import AT_ONCE, LENGTH, far_probes, row_length, scan_probes
from interp.scan.record import Record
from interp.scan.table import HeadScan

if TYPE_CHECKING:
    from interp.models import Model
    from interp.weights.direct import Readout

LOG = logging.getLogger("interp")

_NULLS = {"repeated": "shuffled", "random": "elsewhere"}
"""For a part of a probe, the part that is its null."""

Method = Literal["stream", "hooks"]
"""How attention is read: without patterns, or as one layer's patterns at a time."""

_SIZE = 1 << 26
"""Bytes that one layer's patterns may take in one batch of rows."""


def scan_heads(
    model: Any,
    *,
    rows: SupportsIndex = 16,
    seed: SupportsIndex = 0,
    length: SupportsIndex | None = None,
    method: str = "stream",
    quick: bool = False,
    bos: SupportsIndex = 1,
    definitions: Collection[str] = (),
    thresholds: Thresholds | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HeadScan:
    """Find out what every head of `model` does.

    Three probes are run (see `interp.kinds.probes`): random tokens that repeat, the same rows with
    what follows the first copy in another order, and natural text. Labels come from the first,
    and have to beat the null that the second gives. Its repeats show induction and
    duplicate-token heads, and the positional kinds beside them; the sink, which is what a head
    does when it has nothing to do, is scored before the first repeat, where that is so. The
    scores on text, where a head mixes its jobs, stand beside those as `text_...`. A model
    without a tokenizer is not run on text.

    A model that looks both ways (BERT) is read from its patterns; its rows also end with the token
    that closes its texts, and its kinds are those of `interp.kinds.kind.kinds_of`.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes.
        rows: Rows of random tokens; of text, which only informs, there are half as many.
        seed: Of the random tokens. The same seed gives the same numbers.
        length: Tokens in a row; 129 if left out, or the model's context if that is shorter.
            A longer one adds the induction score by distance, for two copies 32, 64, 128 ...
            tokens apart, as far as the length goes: a head may find what is near only.
        method: `stream` scores queries and keys, exactly, and never builds a pattern; `hooks`
            scores patterns, one layer's at a time. A model whose attention cannot be streamed
            is read by hooks; the result says which it was.
        quick: Leave out the null, the effect on logits and what weights say: half the
            time, and labels that rest on the thresholds alone.
        definitions: Names of `interp.patterns.definitions.DEFINITIONS`: the scores that others
        give heads,
            each in a column `as_...`, from the patterns of some of the same rows.
        bos: How many BOS open a row: 0, 1 or 2. A model without BOS has none.
        thresholds: What decides; `Thresholds()` if left out.
        progress: Called with (layers done, layers in all).

    Raises:
        InputError: If the model cannot be loaded, its context or vocabulary is too small, a
            number is not a whole one in its range, an argument is of another kind, or a name is
            not known; also if `definitions` or `hooks` are asked of a model that hooks cannot
            run, `definitions` of one that is not causal, or the model is an encoder-decoder.
    """
    from interp.models import load_model
    from interp.patterns.definitions import check_names

    check_names(definitions, "definitions")
    thresholds, quick = as_thresholds(thresholds), truth("quick", quick)
    if progress is not None and not callable(progress):
        raise InputError(f"progress must be a function of two numbers, got {progress!r}")
    rows, seed, bos = whole("rows", rows, least=1), whole_seed(seed), whole("bos", bos)
    length = None if length is None else whole("length", length)
    if bos not in (0, 1, 2):
        raise InputError(f"bos must be 0, 1 or 2, got {bos}")
    model = load_model(model)
    if model.direction == "encoder-decoder":
        raise InputError(
            f"model must have one stack, got {model.name}, an encoder-decoder: give its encoder"
            " alone (its get_encoder()), or read attention_patterns of a stack"
        )
    causal = model.direction == "causal"
    if definitions and not causal:
        raise InputError(
            f"definitions must be of causal heads, got {model.name}, which looks ahead"
        )
    how = method_for(model, method)
    length = row_length(model, length)
    made = scan_probes(model, rows, seed, length, bos)
    on_text = next(iter(made[-1].parts))  # Text if there is any, else the random tokens.
    far = far_probes(model, rows, seed, length, bos) if length > LENGTH and causal else []
    null = [] if quick else [probes.shuffled(made[0], seed=seed)]
    readout, copying, absent = _readout(model, how, quick)
    if on_text != "text":
        absent.setdefault(f"text_{VALUE_WEIGHTED}", "natural text was not run")
    defined = _as_defined(model, made[0], definitions)
    batches = made + null + far
    scores = measure(model, batches, thresholds, how, on_text, readout, progress)
    parts = list(scores)
    source = {
        name: "random" if kind.idle else "repeated" for name, kind in kinds_of(causal).items()
    }
    source |= dict.fromkeys(STATISTICS, on_text)

    found = [LayerScores.join(batches).tallies for batches in scores["repeated"].values()]
    sizes = [
        tallies[EFFECT].mean.abs().max().item()
        for tallies in found
        if EFFECT in tallies and tallies[EFFECT].queries.any()
    ]

    slopes = model.alibi_slopes
    seen = made[0].parts["repeated"].nonzero()[:, 1] + 1
    verdicts, others = [], []
    for layer in sorted(scores["repeated"]):
        by_part = {
            part: LayerScores.join(scores[part][layer]).measured(thresholds.min_queries)
            for part in parts
        }
        judged = LayerScores(
            {
                name: by_part[part].tallies[name]
                for name, part in source.items()
                if name in by_part[part].tallies
            },
            by_part["random"].sink_position,
        )
        window = model.windows[layer]
        tokens = made[0].tokens
        null_tallies = {
            kind: by_part[_NULLS[part]].tallies[kind]
            for kind, part in source.items()
            if _NULLS.get(part) in by_part and kind in by_part[_NULLS[part]].tallies
        }
        effect = by_part["repeated"].tallies.get(EFFECT)
        labelled = label_heads(
            layer,
            judged,
            thresholds,
            window=window,
            window_forced=window is not None and window < tokens.shape[1],
            not_measured=why_not_measured(
                tokens,
                judged,
                thresholds,
                special=model.special,
                window=window,
                causal=causal,
            ),
            nulls={kind: evidence.quantile(tally) for kind, tally in null_tallies.items()},
            induction_effect=None if effect is None else _known_ends(effect),
            largest_effect=max(sizes, default=0.0),
        )
        verdicts += (
            labelled
            if slopes is None
            else [
                name_what_slopes_do(verdict, slope, seen, thresholds)
                for verdict, slope in zip(labelled, slopes, strict=True)
            ]
        )
        others += _others(by_part, judged.tallies, null_tallies)
    if not causal:
        texts = [model.texts_of(row) for row in made[0].tokens]
        verdicts = [with_sink_named(v, made[0].tokens, texts, model.special) for v in verdicts]
    for name, values in defined.items():
        for record, value in zip(others, values, strict=True):
            record[f"{DEFINED}{name}"] = value
    for record, value in zip(others, copying, strict=False):
        record["ov_copying"] = value
    made_by = _made_by(model, batches, seed, thresholds, how, source)
    made_by |= {"quick": quick, "left_out": absent}
    return HeadScan.of(verdicts, others, made_by)


def method_for(model: "Model", method: str) -> Method:
    """The way in which `model` is read: what was asked for, where that is possible.

    Raises:
        InputError: If there is no such way.
    """
    from interp.models.stream import FUSED_ON, streams

    if method not in get_args(Method):
        raise InputError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if method == "stream" and streams(model):
        if model.device.type not in FUSED_ON:
            LOG.info(
                "no fused kernel gives log-sum-exps on %s: attention goes by tiles",
                model.device.type,
            )
        return "stream"
    if method == "stream":
        LOG.info("%s cannot be streamed: reading patterns, one layer at a time", model.name)
    return "hooks"


def measure(
    model: "Model",
    made: list[probes.Probe],
    thresholds: Thresholds,
    method: Method,
    on_text: str,
    readout: "Readout | None",
    progress: Callable[[int, int], None] | None,
) -> dict[str, dict[int, list[LayerScores]]]:
    """Run the probes and score each layer as it attends: `[part][layer]`, by batch.

    Args:
        model: To be run.
        made: What is run; each part is asked for its own kinds (`asked_of`).
        thresholds: For the questions.
        method: From `method_for`.
        on_text: The part that is asked for entropy and distance too.
        readout: For effects on the logits; without one they are left out.
        progress: Called with (layers done, layers in all).
    """
    from interp.models.hooks import run
    from interp.models.stream import stream
    from interp.weights.direct import StripeEffects, value_norms

    batches = [batch for probe in made for batch in probe.split(_rows(model, probe, method))]
    scores: dict[str, dict[int, list[LayerScores]]] = {}
    done = 0
    for batch in batches:
        questions = _questions(model, batch, thresholds, on_text)
        effects = None
        if readout is not None and "repeated" in batch.parts:
            effects = StripeEffects(readout, batch.tokens.to(model.device))

        def score(
            layer: int,
            attention: Attention | torch.Tensor,
            questions: dict[tuple[str, int | None], Questions] = questions,
            parts: Sequence[str] = tuple(batch.parts),
            effects: StripeEffects | None = effects,
        ) -> None:
            nonlocal done
            if isinstance(attention, FromQK) and attention.v is not None and readout is not None:
                if on_text in parts:
                    attention.norms = value_norms(attention.v, readout.W_O(layer))
                if effects is not None:
                    asked = questions["repeated", model.windows[layer]]
                    effects.look(layer, attention, asked.keys["induction"], asked.fit)
            for part in parts:
                asked = questions[part, model.windows[layer]]
                measured = score_layer(attention, asked, thresholds)
                scores.setdefault(part, {}).setdefault(layer, []).append(measured)
            done += 1
            if progress is not None:
                progress(done, len(batches) * model.n_layers)

        if method == "hooks":
            run(model, batch.tokens, score)
        elif readout is None or effects is None:
            stream(model, batch.tokens, score)
        else:
            with readout.watching() as scales:
                stream(model, batch.tokens, score)
            for layer, tally in effects.tallies(scales[0]).items():
                scores["repeated"][layer][-1].tallies[EFFECT] = tally
    return scores


def _readout(
    model: "Model", method: Method, quick: bool
) -> tuple["Readout | None", list[float], dict[str, str]]:
    """The way from a head to the logits and what weights say of copying, head by head.

    Without them, which columns are left out, and why.
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


def _questions(
    model: "Model", batch: probes.Probe, thresholds: Thresholds, on_text: str
) -> dict[tuple[str, int | None], Questions]:
    """What to ask, for each part of the batch and each window that a layer has."""
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
            is_null = part in _NULLS.values()
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


def _rows(model: "Model", probe: probes.Probe, method: Method) -> int:
    """How many rows to run at once."""
    length = probe.tokens.shape[1]
    at_once = AT_ONCE // length
    if method == "hooks":
        at_once = min(at_once, _SIZE // (4 * model.n_heads * length**2))
    return max(1, at_once)


def _others(
    by_part: dict[str, LayerScores], judged: dict[str, Tally], nulls: dict[str, Tally]
) -> list[dict[str, float]]:
    """For each head what stands beside its scores: evidence, scores on text, by distance."""
    text = by_part["text"].tallies if "text" in by_part else {}
    on_text = {f"text_{kind}": tally for kind, tally in text.items() if kind in KINDS}
    columns = {name: tally.mean.tolist() for name, tally in on_text.items()}
    columns |= {f"{name}_chance": tally.uniform_mean.tolist() for name, tally in on_text.items()}
    if VALUE_WEIGHTED in text:
        columns[f"text_{VALUE_WEIGHTED}"] = text[VALUE_WEIGHTED].mean.tolist()
    for kind, tally in judged.items():
        if kind in KINDS:
            columns |= _ends(kind, tally) | {f"{kind}_spread": evidence.spread(tally).tolist()}
    for kind, tally in nulls.items():
        columns[f"{kind}_null"] = tally.mean.tolist()
        columns[f"{kind}_null_99"] = evidence.quantile(tally).tolist()
    if EFFECT in by_part["repeated"].tallies:
        tally = by_part["repeated"].tallies[EFFECT]
        columns |= {EFFECT: tally.mean.tolist()} | _ends(EFFECT, tally)
    for part, scores in by_part.items():
        if part.startswith(AT_DISTANCE) and "induction" in scores.tallies:
            columns[part] = scores.tallies["induction"].mean.tolist()
    n_heads = by_part["repeated"].sink_position.shape[1]
    return [{name: values[head] for name, values in columns.items()} for head in range(n_heads)]


def _as_defined(
    model: "Model", probe: probes.Probe, names: Collection[str]
) -> dict[str, list[float]]:
    """Scores by other definitions, for every head in order; from patterns, of a few rows."""
    from interp.models.hooks import run
    from interp.patterns.definitions import scores_by_definition

    found: dict[str, list[float]] = {name: [] for name in names}
    tokens = probe.tokens[: _rows(model, probe, "hooks")].to(model.device)

    def score(layer: int, pattern: torch.Tensor) -> None:
        scored = scores_by_definition(pattern, tokens, names, learned_sinks=model.learned_sinks)
        for name, values in scored.items():
            found[name] += values.tolist()

    if names:
        run(model, tokens, score)
    return found


def _known_ends(tally: Tally) -> torch.Tensor:
    """The interval of a mean; of one row, which has none, the mean itself."""
    ends = evidence.interval(tally)
    return torch.where(ends.isnan(), tally.mean, ends)


def _ends(name: str, tally: Tally) -> dict[str, list[float]]:
    low, high = evidence.interval(tally)
    return {f"{name}_low": low.tolist(), f"{name}_high": high.tolist()}


def _made_by(
    model: "Model",
    made: list[probes.Probe],
    seed: int,
    thresholds: Thresholds,
    method: Method,
    source: dict[str, str],
) -> dict[str, Any]:
    bos = model.bos if made[0].tokens[0, 0] == model.bos else None
    return Record.of_model(
        model,
        layers=True,
        bos=bos,
        bos_text=None if bos is None else model.texts_of(torch.tensor([bos]))[0],
        special=sorted(model.special),
        n_bos=int((made[0].tokens[0] == bos).sum()) if bos is not None else 0,
        seed=seed,
        method=method,
        tokenizer=model.tokenizer is not None,
        probes=[probe.record() for probe in made],
        scored_on=source,
        thresholds=asdict(thresholds),
    )
