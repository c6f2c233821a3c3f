"""Find out what every head of a model does: `scan_heads`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field

from interp.errors import Count, InputError, Seed, Whole, checked, quoted
from interp.files import versions
from interp.kinds import evidence, probes
from interp.kinds.builtin import as_kinds, kinds_of
from interp.kinds.explained import START, Explained
from interp.kinds.kind import Kind
from interp.kinds.labels import NEAR, NEAR_IN_BFLOAT16, HeadLabel, judge_layer
from interp.kinds.mass import Tally
from interp.kinds.scores import STATISTICS, VALUE_WEIGHTED, LayerScores, Thresholds, as_thresholds
from interp.scan.columns import AT_DISTANCE, DEFINED, EFFECT
from interp.scan.explained import columns_of, pairs_in_words, record_of
from interp.scan.measure import (
    by_definition,
    measure,
    method_for,
    preferred_keys,
    readout_of,
    texts_for,
)
from interp.scan.own_text import Cut, measure_text
from interp.scan.parts import Parts
from interp.scan.plan import (
    LENGTH,
    NO_TEXT,
    encoded_passages,
    far_probes,
    kind_probes,
    row_length,
    scan_probes,
)
from interp.scan.record import Record
from interp.scan.table import HeadScan
from interp.text import visible

if TYPE_CHECKING:
    from interp.models import Model


@checked
def scan_heads(
    model: Any,
    *,
    rows: Count = 16,
    seed: Seed = 0,
    length: Whole | None = None,
    method: str = "stream",
    quick: bool = False,
    bos: Annotated[Whole, Field(ge=0, le=2)] = 1,
    definitions: Collection[str] = (),
    kinds: Any = None,
    explained: bool | Literal["preferred"] = False,
    text: Any = None,
    folder: Any = None,
    thresholds: Thresholds | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HeadScan:
    """Find out what every head of `model` does.

    The model runs three probes (see `interp.kinds.probes`): random tokens that repeat, the same
    rows with the tokens after the first copy shuffled, and natural text if it has a tokenizer.
    Labels come from the first probe, and their scores must exceed the null of the second. After
    the first repeat the scan scores induction, duplicate-token and positional kinds; before it the
    sink, which is what a head does when it has nothing to do. Scores on text, where a head mixes
    its functions, are the columns `text_...`. The scan reads a bidirectional model (BERT) from
    its patterns; its rows also end with the token that closes its texts.

    Args:
        model: `Model`, or anything that `interp.load_model` accepts.
        rows: Rows of random tokens; half as many of text.
        seed: Random seed. The same seed gives the same numbers.
        length: Tokens in a row; 129 if left out, or the model's context if that is shorter.
            More than 129 adds the induction score by distance, for two copies 32, 64, 128 ...
            tokens apart.
        method: `stream` computes exact scores from queries and keys without patterns; `hooks`
            computes them from patterns, one layer at a time, as for every model that cannot be
            streamed.
        quick: Whether to leave out the null, the effect on logits and the copying score: half
            the time, and labels by thresholds alone.
        bos: Number of BOS tokens that open a row: 0, 1 or 2.
        definitions: Names from `interp.patterns.definitions.DEFINITIONS`: published scores, each
            in a column `as_...`, from the patterns of some of the same rows.
        kinds: Kinds to score: names, `default`, `all`, kinds of your own (see `interp.kind`), or
            a list of these. By default the six of causal models.
        explained: Whether to measure how much of each head's attention on text the kinds explain:
            `HeadScan.explained`, and the columns `explained...`. With `preferred` the keys that a
            head prefers whatever the query explain too, after the kinds: they are fitted on other
            built-in texts (see `interp.kinds.preferred`).
        text: Natural text of your own instead of the built-in one: texts, or the path of a file
            (`.jsonl` and `.parquet` with `text`, any other as running text) or of a folder. All of
            it is run, in rows of `length` tokens, and memory does not grow with it.
        folder: Folder for what is done of `text`: after an interruption the same call resumes.
        thresholds: Thresholds of the labels; `Thresholds()` if left out.
        progress: Function called with (layers done, layers in all), then with (pieces done,
            pieces in all) of `text`.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> scan_heads(toy, rows=2, quick=True).heads("induction")
        [L1H5]
    """
    from interp.models import load_model
    from interp.patterns.definitions import check_names

    check_names(definitions, "definitions")
    thresholds = as_thresholds(thresholds)
    model = load_model(model)
    if model.direction == "encoder-decoder":
        advice = "give its encoder alone (its get_encoder()), or read attention_patterns of a stack"
        raise InputError(f"model must have one stack, got an encoder-decoder: {advice}")
    causal = model.direction == "causal"
    if definitions and not causal:
        raise InputError(f"definitions must be of causal heads, got {quoted(model.name)}")
    method = method_for(model, method)
    length = row_length(model, length)
    chosen = as_kinds(kinds)
    if explained and not kinds_of(causal, chosen).keys() - {"sink"}:
        raise InputError("kinds must have one besides the sink if explained, got none: add some")
    plan = scan_probes(model, rows, seed, length, bos, texts=text is None)
    cut = None if text is None else Cut.of(model, text, length, bos)
    repeated, on_text = plan[0], next(iter(plan[-1].parts))  # Random tokens if there is no text.
    on_text = on_text if cut is None else "text"
    too_short = cut is None and (on_text != "text" or plan[-1].tokens.shape[1] <= START)
    unscored = _unscored(model, chosen, on_text)
    if not kinds_of(causal, chosen).keys() - unscored.keys():
        raise InputError(
            f"kinds must have one that can be scored, got {', '.join(chosen)}:"
            f" {next(iter(unscored.values()), 'not defined for this model')}"
        )
    plan = kind_probes(model, plan, chosen, seed, quick=quick)
    plan += [] if quick else [probes.shuffled(repeated, seed=seed)]
    plan += far_probes(model, rows, seed, length, bos) if length > LENGTH and causal else []
    readout, copying, absent = readout_of(model, method, quick)
    if on_text != "text":
        absent.setdefault(f"text_{VALUE_WEIGHTED}", "natural text was not run")
        if model.tokenizer is not None and not encoded_passages(model):
            absent["text_<kind>"] = NO_TEXT
    if explained and too_short:
        explained, absent["explained"] = False, f"no text of more than {START} tokens was run"
    defined = by_definition(model, repeated, definitions)
    how = (thresholds, method, on_text, readout, chosen)
    options: dict[str, Any] = {"explained": bool(explained)}
    fitted = None
    if explained == "preferred":
        fitted = preferred_keys(model, plan if cut is None else [], length, bos, *how[:2], chosen)
        options["of_heads"] = lambda layer: partial(fitted.of_layer, layer)
    scores = measure(model, plan, *how, progress, **options)
    texts = [row for probe in plan if "text" in probe.parts for row in probe.tokens]
    text_rows, parts = dict(enumerate(texts)), None
    if cut is not None:
        settings = _settings(model, cut, chosen, thresholds, method)
        settings |= {"quick": quick, "explained": explained, "seed": seed}
        if folder is not None:
            parts = Parts.of(folder, settings, cut.pieces, ".safetensors", "parts of text")
        of_text, text_rows = measure_text(
            model,
            cut,
            lambda some: measure(model, some, *how, **options),
            () if quick else {kind.null_part for kind in chosen.values()},
            **{"seed": seed, "parts": parts, "progress": progress},
        )
        scores |= of_text
    scored_on = {name: kind.part for name, kind in kinds_of(causal, chosen).items()}
    scored_on |= dict.fromkeys(STATISTICS, on_text)
    verdicts, others = _judge(model, repeated, scores, thresholds, scored_on, chosen, unscored)
    added = {f"{DEFINED}{name}": values for name, values in defined.items()}
    added |= {"ov_copying": copying} if copying else {}
    for number, other in enumerate(others):
        other |= {name: values[number] for name, values in added.items()}
    bos_id = model.bos if repeated.tokens[0, 0] == model.bos else None
    made_by = Record.of_model(
        model,
        layers=True,
        bos=bos_id,
        bos_text=None if bos_id is None else model.texts_of(torch.tensor([bos_id]))[0],
        special=sorted(model.special),
        n_bos=0 if bos_id is None else int((repeated.tokens[0] == bos_id).sum()),
        seed=seed,
        method=method,
        tokenizer=model.tokenizer is not None,
        probes=[probe.record() for probe in plan],
        scored_on=scored_on,
        **({} if kinds is None else {"kinds": {n: kind.record() for n, kind in chosen.items()}}),
        thresholds=asdict(thresholds),
    )
    made_by |= {"quick": quick, "left_out": absent}
    made_by |= {} if cut is None else {"text": cut.record()}
    if explained:
        joined = {n: LayerScores.join(parts).explained for n, parts in scores["text"].items()}
        by_layer = {layer: one for layer, one in sorted(joined.items()) if one is not None}
        made_by["explained"] = record_of(by_layer, lambda row: model.texts_of(text_rows[row]))
        pairs = made_by["explained"]["unexplained"]
        for other, verdict in zip(others, verdicts, strict=True):
            other["unexplained"] = pairs_in_words(pairs[str(verdict.head)])
            if fitted is not None:
                ids = fitted.strongest(*verdict.head, most=5)
                other["preferred"] = ", ".join(map(visible, model.texts_of(ids)))
    scan = HeadScan.of(verdicts, others, made_by, kinds=tuple(chosen.values()))
    if parts is not None:
        parts.remove()
    return scan


def _settings(
    model: "Model", cut: Cut, kinds: Mapping[str, Kind], thresholds: Thresholds, method: str
) -> dict[str, Any]:
    """What decides the scores on your own text."""
    return {
        **Record.identity(model),
        **{"text": cut.record(), "method": method, "thresholds": asdict(thresholds)},
        **{"kinds": {name: kind.record() for name, kind in kinds.items()}, "n_bos": cut.n_bos},
        "versions": versions(),
    }


def _unscored(model: "Model", kinds: Mapping[str, Kind], on_text: str) -> dict[str, str]:
    """The kinds that cannot be scored, and why."""
    without = [name for name, kind in kinds.items() if kind.on == "text" != on_text]
    absent = dict.fromkeys(without, "natural text was not run")
    return absent | texts_for(model, torch.zeros(1, 1, dtype=torch.long), kinds)[1]


def _judge(
    model: "Model",
    repeated: probes.Probe,
    scores: dict[str, dict[int, list[LayerScores]]],
    thresholds: Thresholds,
    scored_on: dict[str, str],
    kinds: Mapping[str, Kind],
    unscored: Mapping[str, str],
) -> tuple[list[HeadLabel], list[dict[str, Any]]]:
    """The label of every head and its further columns.

    `scores` are from `measure`; `scored_on` has the part of the probes for each kind, and
    `unscored` why some kinds have no score.
    """
    causal = model.direction == "causal"
    joined = [LayerScores.join(batches).tallies for batches in scores["repeated"].values()]
    effects = [tallies[EFFECT] for tallies in joined if EFFECT in tallies]
    sizes = [effect.mean.abs().max().item() for effect in effects if effect.queries.any()]
    texts = None if causal else [model.texts_of(row) for row in repeated.tokens]
    verdicts, others = [], []
    for layer in sorted(scores["repeated"]):
        joined = {part: LayerScores.join(by_layer[layer]) for part, by_layer in scores.items()}
        by_part = {p: one.measured(thresholds.min_queries).tallies for p, one in joined.items()}
        tallies = _picked(by_part, scored_on)
        nulls = _picked(by_part, {name: kind.null_part for name, kind in kinds.items()})
        intervals = {kind: evidence.interval(one) for kind, one in tallies.items() if kind in kinds}
        ends = None
        if effect := by_part["repeated"].get(EFFECT):
            ends = evidence.interval(effect)
            ends = torch.where(ends.isnan(), effect.mean, ends)  # One row has no interval.
        verdicts += judge_layer(
            layer,
            replace(joined["random"], tallies=tallies),
            repeated.tokens,
            thresholds,
            kinds=kinds,
            special=model.special,
            causal=causal,
            window=model.windows[layer],
            texts=texts,
            absent=unscored,
            alibi_slopes=model.alibi_slopes,
            seen=repeated.parts["repeated"].nonzero()[:, 1] + 1,
            nulls={kind: evidence.quantile(tally) for kind, tally in nulls.items()},
            intervals=intervals,
            near=NEAR_IN_BFLOAT16 if model.dtype_name == "bfloat16" else NEAR,
            induction_effect=ends,
            largest_effect=max(sizes, default=0.0),
        )
        share = joined["text"].explained if "text" in joined else None
        columns = _columns(by_part, tallies, nulls, intervals, kinds, share)
        n_heads = joined["repeated"].sink_position.shape[1]
        others += [{name: of[head] for name, of in columns.items()} for head in range(n_heads)]
    return verdicts, others


def _picked(by_part: dict[str, dict[str, Tally]], parts: dict[str, str]) -> dict[str, Tally]:
    """The tallies by name, each from its part, where there are any."""
    found = {name: by_part.get(part, {}).get(name) for name, part in parts.items()}
    return {name: tally for name, tally in found.items() if tally is not None}


def _columns(
    by_part: dict[str, dict[str, Tally]],
    scored: dict[str, Tally],
    nulls: dict[str, Tally],
    intervals: dict[str, torch.Tensor],
    kinds: Mapping[str, Kind],
    explained: Explained | None,
) -> dict[str, list[float]]:
    """The further columns of a layer's heads: evidence, scores on text and by distance."""
    text = by_part.get("text", {})
    there = {name: kind for name, kind in kinds.items() if name in text and kind.on != "text"}
    on_text = {f"text_{name}": text[name] for name in there}
    columns = {name: tally.mean.tolist() for name, tally in on_text.items()}
    columns |= {f"{name}_chance": tally.uniform_mean.tolist() for name, tally in on_text.items()}
    if VALUE_WEIGHTED in text:
        columns[f"text_{VALUE_WEIGHTED}"] = text[VALUE_WEIGHTED].mean.tolist()
    for kind, tally in scored.items():
        if kind in kinds:
            columns |= _ends(kind, intervals[kind])
            columns[f"{kind}_spread"] = evidence.spread(tally).tolist()
    for kind, tally in nulls.items():
        columns[f"{kind}_null"] = tally.mean.tolist()
        columns[f"{kind}_null_99"] = evidence.quantile(tally).tolist()
    if tally := by_part["repeated"].get(EFFECT):
        columns |= {EFFECT: tally.mean.tolist()} | _ends(EFFECT, evidence.interval(tally))
    if explained is not None:
        columns |= columns_of(explained)
    for part, tallies in by_part.items():
        if part.startswith(AT_DISTANCE) and "induction" in tallies:
            columns[part] = tallies["induction"].mean.tolist()
    return columns


def _ends(name: str, interval: torch.Tensor) -> dict[str, list[float]]:
    low, high = interval
    return {f"{name}_low": low.tolist(), f"{name}_high": high.tolist()}
