"""The evidence on one head in sentences: its labels, what they rest on, and what is missing.

`scan` is a `HeadScan`, which uses this module.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from interp.errors import InputError, quoted
from interp.heads import Head
from interp.kinds.builtin import FORCED_WINDOW, kind_of
from interp.kinds.labels import MIXED, excess
from interp.scan.columns import EFFECT


def row_of(scan: Any, head: Any) -> dict[str, Any]:
    """The row of a head, without the columns that are missing."""
    name = str(Head.parse(head))
    rows = scan.frame.loc[scan.frame["name"] == name].to_dict("records")
    if not rows:
        raise InputError(f"head must be one of the scan's {len(scan.frame)}, got {quoted(name)}")
    return {
        str(column): value
        for column, value in rows[0].items()
        if isinstance(value, list) or not (pd.isna(value) or value == "")
    }


def sentences(scan: Any, head: Any, others: Iterable[Any] = ()) -> list[str]:
    """What is known of a head, a sentence or a list in each line (see `HeadScan.explain`)."""
    row = row_of(scan, head)
    labels, measured = row["labels"], [name for name in scan.kinds if name in row]
    also = f", also {', '.join(labels[1:])}" if labels[1:] else ""
    lines = [f"{row['name']}: {row['label']}{also}"]
    lines += [_reason(scan, row, label) for label in labels if label != MIXED]
    rest = [name for name in measured if not {*scan.kinds[name].scored_labels} & {*labels}]
    reasons: dict[str, list[str]] = {}
    for name in rest:
        needed, null = scan.thresholds[name], row.get(f"{name}_null_99", 0.0)
        enough = _excess(row, name) >= needed
        why = f"its null is {null:.2f}" if enough else f"a label needs {needed:g} beyond chance"
        reasons.setdefault(why, []).append(f"{scan.kinds[name].label} {row[name]:.2f}")
    lines += [f"No label for {', '.join(scores)}: {why}." for why, scores in reasons.items()]
    near = [name for name in str(row.get("borderline", "")).split(", ") if name]
    if near:
        words = ", ".join(name.replace("_", " ") for name in near)
        lines.append(f"Borderline, so that another seed may change the label: {words}.")
    on_text = {name: row[f"text_{name}"] for name in measured if f"text_{name}" in row}
    if on_text:
        strongest = sorted(on_text, key=lambda name: -on_text[name])[:3]
        scores = ", ".join(f"{scan.kinds[name].label} {on_text[name]:.2f}" for name in strongest)
        lines.append(f"On natural text: {scores}.")
    if EFFECT in row:
        lines.append(
            f"Effect: adds {_number(row, EFFECT, '+.2f')} to the logit of the right next token,"
            " directly, through its induction targets."
        )
    if "explained" in row:
        lines.append(
            f"Explained: {_number(row, 'explained')} of its attention outside sinks on text is on"
            f" targets of a kind; of as many keys drawn evenly, {_number(row, 'explained_null')}."
        )
    if "unexplained" in row:
        lines.append(f"Strongest pairs of no kind: {row['unexplained']}.")
    for other in others:
        lines += _from_result(row["name"], other)
    return lines + _missing(scan, row)


def _reason(scan: Any, row: Mapping[str, Any], label: str) -> str:
    """Why the head has the label."""
    kind = kind_of(label, scan.kinds)
    if label == FORCED_WINDOW:
        width = f" of {row['window']:.0f} keys" if "window" in row else ""
        return f"{label}: by architecture, its layer sees a window{width}."
    if kind is None or kind.name not in row:
        return f"{label}: no kind could be measured."
    name = kind.name
    words = f"{label}: score {_number(row, name)}"
    words += f", {_excess(row, name):.2f} beyond chance; needs {scan.thresholds[name]:g}"
    if f"{name}_null_99" in row:
        words += f", and more than its null {row[f'{name}_null_99']:.2f}"
    if label == kind.opposite and EFFECT in row:
        words += f"; it lowers the right next token's logit, effect {row[EFFECT]:+.2f}"
    return f"{words}. It {kind.looks(scan.thresholds, causal=scan.causal)}." + (
        f" Its sinks, by position (share): {row['sinks']}."
        if name == "sink" and "sinks" in row
        else ""
    )


def _excess(row: Mapping[str, Any], name: str) -> float:
    return excess(row[name], row.get(f"{name}_chance", 0.0))


def _number(row: Mapping[str, Any], name: str, form: str = ".2f") -> str:
    """A number with its interval, if there is one."""
    if name not in row:
        return "an unknown share"
    names = (name, f"{name}_low", f"{name}_high")
    value, *ends = [format(round(row[n], 2) + 0.0, form) for n in names if n in row]  # No -0.
    return value + f" [{', '.join(ends)}]" * bool(ends)


def _from_result(name: str, other: Any) -> list[str]:
    """What another result says of the head: its effect, or the heads that it reads."""
    frame, made_by = other.to_frame(), getattr(other, "made_by", {})
    if {"from", "to", "path"} <= {*frame.columns}:
        edges = frame.loc[frame["to"] == name]
        measure = other.measures[0]
        change = edges[f"{measure}_after"] - edges[f"{measure}_before"]
        change = change[change.abs() >= 0.005]
        strongest = change.abs().sort_values(ascending=False).index[:3]
        fed = [f"{edges['from'][i]} ({edges['path'][i]}) {change[i]:+.2f}" for i in strongest]
        return [f"Reads, with the change of {measure} without them: {', '.join(fed)}."] * bool(fed)
    rows = frame.loc[frame["name"] == name].rename(columns=lambda n: _ENDS.get(n, n))
    if rows.empty:
        return []
    row = rows.loc[rows["effect"].abs().idxmax()].dropna().to_dict()
    what = str(made_by.get("what", made_by.get("removed", "changed"))).capitalize()
    unit = made_by.get("unit", "effect") + ", the largest of several" * (len(rows) > 1)
    metric = made_by.get("metric", "metric")
    return [f"{what}, {metric}: {_number(row, 'effect', '+.2f')} ({unit})."]


_ENDS = {"low": "effect_low", "high": "effect_high"}


def _missing(scan: Any, row: Mapping[str, Any]) -> list[str]:
    """A line for each reason why values are missing."""
    absent = {
        name: why for name, why in scan.made_by.get("left_out", {}).items() if name not in row
    }
    if scan.made_by.get("probes"):
        absent.setdefault("explained", "scan with explained=True")
    else:
        absent["null, interval, effect"] = "there is no record of a scan"
    if "explained" in row:
        absent.pop("explained", None)
    lines = [f"not measured: {why}" for why in row.get("not_measured", "").split("; ") if why]
    lines += left_out({"left_out": absent})
    return [f"{line[0].upper()}{line[1:]}.".replace("_", " ") for line in lines]


def left_out(made_by: Mapping[str, Any]) -> list[str]:
    """A line for each reason why columns are absent from a table with this record."""
    columns: dict[str, list[str]] = {}
    for column, reason in made_by.get("left_out", {}).items():
        columns.setdefault(reason, []).append(column)
    return [f"left out: {', '.join(names)}: {reason}" for reason, names in columns.items()]
