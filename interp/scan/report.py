"""The terminal report of a scan: how many heads of each kind, and which."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table

from interp.kinds.kind import KINDS, LABELS
from interp.scan.columns import AT_DISTANCE, EFFECT
from interp.scan.table import WORDS, HeadScan
from interp.text import prose


def report(scan: HeadScan, top: int) -> Iterator[Table | str]:
    """The summary, the `top` strongest heads of each kind, and the rows that were run.

    Yields:
        Tables and lines for rich to print. Invisible characters in names, which could control a
        terminal, appear as their code points.
    """
    for part in _parts(scan, top):
        yield prose(part) if isinstance(part, str) else part


def _parts(scan: HeadScan, top: int) -> Iterator[Table | str]:
    model = scan.made_by.get("model", "attention patterns")
    yield f"{model}: {len(scan.frame)} heads by their most specific label"
    yield _summary(scan)
    yield "also: heads with this label and a more specific one"
    if any(scan.heads(label) for label in _labels(scan)):
        yield f"The {top} strongest heads of each kind"
        yield _strongest(scan, top)
    else:
        yield "No head has any of these labels. The highest scores:"
        yield _highest(scan)
    yield "score: mean attention mass on the kind's targets, from 0 to 1"
    if "induction_low" in scan.frame and len(scan.frame["induction_low"].dropna()):
        yield "95 %: bootstrap interval over rows, each with a different period"
    yield "chance: score of attention spread evenly; on text: score on natural text"
    if "induction_null_99" in scan.frame:
        yield "null: 99 % quantile of the score where there is nothing to find; a label needs more"
    if EFFECT in scan.frame:
        yield (
            "effect: direct effect on the logit of the right next token, through the induction"
            " targets; early heads have little, since they act through later layers"
        )
    left_out = scan.made_by.get("left_out", {})
    for reason in dict.fromkeys(left_out.values()):
        columns = ", ".join(column for column, why in left_out.items() if why == reason)
        yield f"left out: {columns}: {reason}"
    yield from _notes(scan)


def _summary(scan: HeadScan) -> Table:
    table = plain_table("label", ">heads", ">also")
    counts = scan.summary()
    for label in dict.fromkeys([*WORDS, *counts]):
        having = sum(label in labels for labels in scan.frame["labels"])
        number = counts.get(label, 0)
        table.add_row(prose(label), str(number), str(having - number or "-"))
    return table


def _strongest(scan: HeadScan, top: int) -> Table:
    table = plain_table(
        "label", "head", ">score", ">95 %", ">chance", ">null", ">on text", ">effect", "also"
    )
    kinds = {label: kind.name for kind in KINDS.values() for label in kind.labels}
    for label in _labels(scan):
        kind, rows = kinds[label], scan.having(label).head(top)
        for number, row in enumerate(rows.to_dict("records")):
            table.add_row(
                label if number == 0 else "",
                row["name"],
                _number(row, kind),
                _interval(row, kind),
                _number(row, f"{kind}_chance"),
                _number(row, f"{kind}_null_99"),
                _number(row, f"text_{kind}"),
                _number(row, EFFECT, "+.2f") if kind == "induction" else "-",
                ", ".join(prose(other) for other in row["labels"] if other != label),
                end_section=number == len(rows) - 1,
            )
    return table


def _labels(scan: HeadScan) -> list[str]:
    """The labels that scores give, those of bidirectional models last."""
    both_ways = (k.label for k in KINDS.values() if k.rule is None and k.name in scan.frame)
    return [*WORDS, *both_ways]


def _highest(scan: HeadScan) -> Table:
    table = plain_table("kind", "head", ">score", ">chance")
    for kind, label in LABELS.items():
        rows = scan.frame.sort_values(kind, ascending=False).head(1).to_dict("records")
        for row in rows:
            table.add_row(label, row["name"], _number(row, kind), _number(row, f"{kind}_chance"))
    return table


def _notes(scan: HeadScan) -> Iterator[str]:
    for reason, heads in Counter(scan.frame["not_measured"].tolist()).items():
        if reason:
            yield f"not measured in {heads} heads: {reason}"
    made_by = scan.made_by
    if "patterns" in made_by:
        yield from _source(made_by)
    if "probes" not in made_by:
        return
    for probe in made_by["probes"]:
        periods, size = probe["periods"], f"{_counted(probe['rows'], 'row')} of {probe['length']}"
        if probe["parts"][0].startswith(AT_DISTANCE):
            yield f"run: {size} tokens, {periods[0]} random tokens and their copy"
        elif "shuffled" in probe["parts"]:
            yield f"run: {size} of the same tokens, shuffled after the first copy: the null"
        elif periods:
            spread = f"periods of {min(periods)} to {max(periods)}"
            spread = f"a period of {periods[0]}" if len(set(periods)) == 1 else spread
            yield f"run: {size} random tokens that repeat with {spread}"
        else:
            yield f"run: {size} tokens of natural text"
    if not made_by["tokenizer"]:
        yield "the model has no tokenizer: natural text was not run"
    bos = "no BOS: each row starts with an ordinary token"
    if made_by["bos"] is not None:
        bos = f"BOS ({made_by['bos_text']}, id {made_by['bos']}) at the start of each row"
    if "sink_at" in scan.frame:
        places = Counter(place for place in scan.frame["sink_at"].tolist() if place)
        sinks = (f"{place} in {_counted(heads, 'head')}" for place, heads in places.items())
        yield f"sinks on {', '.join(sinks)}"
    device = made_by["device"]
    if device != "cpu":
        off = made_by.get("off_cpu")
        compared = "not compared with" if off is None else f"attention differs up to {off:.2g} from"
        device += f" ({compared} the CPU)"
    yield f"with {bos}; seed {made_by['seed']}; {made_by['dtype']} on {device}"
    yield "sink is scored before the first repeat, the other kinds after it"


def _source(made_by: dict[str, Any]) -> Iterator[str]:
    size = f"{_counted(made_by['rows'], 'row')} of {_counted(made_by['length'], 'token')}"
    yield f"from {made_by['patterns']['file']}: {size}, in {made_by['dtype']}"
    special = ", ".join(map(str, made_by["special"])) or "only the first token of a row"
    yield f"special tokens, excluded as queries and targets: {special}"
    if made_by["learned_sinks"]:
        yield "learned sinks: scores are shares of all attention, learned sinks included"


def plain_table(*columns: str) -> Table:
    """An empty table; a column whose name begins with > is aligned right."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            column.removeprefix(">"), justify="right" if right else "left", no_wrap=True
        )
    return table


def _interval(row: dict[str, Any], kind: str) -> str:
    low, high = (row.get(f"{kind}_{end}", pd.NA) for end in ("low", "high"))
    return "-" if pd.isna(low) else f"{low:.2f} to {high:.2f}"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _number(row: dict[str, Any], name: str, form: str = ".2f") -> str:
    value = row.get(name, pd.NA)
    return "-" if pd.isna(value) else format(value, form)
