"""The terminal report of a scan: how many heads of each kind, and which."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table

from interp.kinds.builtin import kind_of
from interp.kinds.labels import NOT_FINITE
from interp.scan.columns import AT_DISTANCE, EFFECT
from interp.scan.explain import left_out
from interp.scan.record import Record
from interp.scan.table import HeadScan
from interp.text import prose


def report(scan: HeadScan, top: int) -> Iterator[Table | str]:
    """The summary, the `top` strongest heads of each kind, and the rows that were run.

    Yields:
        Tables and lines for rich to print. Invisible characters in names, which could control a
        terminal, appear as their code points.
    """
    for part in _parts(scan, Record(**scan.made_by), top):
        yield prose(part) if isinstance(part, str) else part


def _parts(scan: HeadScan, record: Record, top: int) -> Iterator[Table | str]:
    model = record.model or "attention patterns"
    yield f"{model}: {len(scan.frame)} heads by their most specific label"
    yield _summary(scan)
    yield "also: heads with this label and a more specific one"
    if any(scan.heads(label) for label in scan.words):
        yield f"The {top} strongest heads of each kind"
        yield _strongest(scan, top)
    else:
        yield "No head has any of these labels. The highest scores:"
        yield _highest(scan)
    yield "score: mean attention mass on the kind's targets, from 0 to 1"
    if scan.borderline():
        yield (
            "~: borderline; .01 around the score (bfloat16: .02) or its interval has the threshold"
            " or the null"
        )
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
    yield from left_out(scan.made_by)
    if NOT_FINITE in scan.summary():
        yield f"not finite: {', '.join(map(str, scan.heads(NOT_FINITE)))}"
    for reason, heads in Counter(scan.frame["not_measured"].tolist()).items():
        if reason:
            yield f"not measured in {heads} heads: {reason}"
    if record.patterns:
        yield from _of_patterns(record)
    if record.probes:
        yield from _of_probes(scan, record)


def _summary(scan: HeadScan) -> Table:
    table = plain_table("label", ">heads", ">also")
    counts = scan.summary()
    for label in dict.fromkeys([*scan.words, *counts]):
        having = sum(label in labels for labels in scan.frame["labels"])
        number = counts.get(label, 0)
        table.add_row(prose(label), str(number), str(having - number or "-"))
    return table


def _strongest(scan: HeadScan, top: int) -> Table:
    table = plain_table(
        "label", "head", ">score", ">95 %", ">chance", ">null", ">on text", ">effect", "also"
    )
    for label in scan.words:
        rows, of = scan.having(label).head(top), kind_of(label, scan.kinds)
        kind = of.name if of else ""
        for number, row in enumerate(rows.to_dict("records")):
            table.add_row(
                "" if number else label,
                row["name"],
                _score(row, kind),
                _interval(row, kind),
                _number(row, f"{kind}_chance"),
                _number(row, f"{kind}_null_99"),
                _number(row, kind if of and of.on == "text" else f"text_{kind}"),
                _number(row, EFFECT, "+.2f") if kind == "induction" else "-",
                ", ".join(prose(other) for other in row["labels"] if other != label),
                end_section=number == len(rows) - 1,
            )
    return table


def _highest(scan: HeadScan) -> Table:
    table = plain_table("kind", "head", ">score", ">chance")
    for name, kind in scan.kinds.items():
        row = scan.frame.sort_values(name, ascending=False).head(1).to_dict("records")[0]
        table.add_row(kind.label, row["name"], _score(row, name), _number(row, f"{name}_chance"))
    return table


def _of_probes(scan: HeadScan, record: Record) -> Iterator[str]:
    for probe in record.probes:
        periods, size = probe.periods, f"{_counted(probe.rows, 'row')} of {probe.length}"
        if not periods:
            yield f"run: {size} tokens of natural text"
        elif probe.parts[0].startswith(AT_DISTANCE):
            yield f"run: {size} tokens, {periods[0]} random tokens and their copy"
        elif "shuffled" in probe.parts:
            yield f"run: {size} of the same tokens, shuffled after the first copy: the null"
        else:
            spread = f"periods of {min(periods)} to {max(periods)}"
            spread = f"a period of {periods[0]}" if len(set(periods)) == 1 else spread
            yield f"run: {size} random tokens that repeat with {spread}"
    if not record.tokenizer:
        yield "the model has no tokenizer: natural text was not run"
    bos = "no BOS: each row starts with an ordinary token"
    if record.bos is not None:
        bos = f"BOS ({record.bos_text}, id {record.bos}) at the start of each row"
    if "sink_at" in scan.frame:
        places = Counter(place for place in scan.frame["sink_at"].tolist() if place)
        sinks = (f"{place} in {_counted(heads, 'head')}" for place, heads in places.items())
        yield f"sinks on {', '.join(sinks)}"
    device, off = record.device, record.off_cpu
    if device != "cpu":
        compared = "not compared with" if off is None else f"attention differs up to {off:.2g} from"
        device += f" ({compared} the CPU)"
    yield f"with {bos}; seed {record.seed}; {record.dtype} on {device}"
    text = [kind.label for kind in scan.kinds.values() if kind.part == "text"]
    own = [kind.label for kind in scan.kinds.values() if not isinstance(kind.on, str)]
    others = f"; on text: {', '.join(text)}" * bool(text)
    others += f"; on fixed prompts: {', '.join(own)}" * bool(own)
    yield f"sink is scored before the first repeat, the other kinds after it{others}"


def _of_patterns(record: Record) -> Iterator[str]:
    size = f"{_counted(record.rows, 'row')} of {_counted(record.length, 'token')}"
    yield f"from {record.patterns.get('file')}: {size}, in {record.dtype}"
    special = ", ".join(map(str, record.special)) or "only the first token of a row"
    yield f"special tokens, excluded as queries and targets: {special}"
    if record.learned_sinks:
        yield "learned sinks: scores are shares of all attention, learned sinks included"


def plain_table(*columns: str) -> Table:
    """An empty table; a column whose name begins with > is aligned right."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        justify = "right" if column.startswith(">") else "left"
        table.add_column(column.removeprefix(">"), justify=justify, no_wrap=True)
    return table


def _interval(row: dict[str, Any], kind: str) -> str:
    low, high = (row.get(f"{kind}_{end}", pd.NA) for end in ("low", "high"))
    return "-" if pd.isna(low) else f"{low:.2f} to {high:.2f}"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _score(row: dict[str, Any], kind: str) -> str:
    near = kind in str(row.get("borderline", "")).split(", ")
    return "~" * near + _number(row, kind)


def _number(row: dict[str, Any], name: str, form: str = ".2f") -> str:
    value = row.get(name, pd.NA)
    return "-" if pd.isna(value) else format(value, form)
