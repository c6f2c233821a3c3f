"""The record of a table of heads, in words and numbers for figures and pages."""

from typing import Any

from interp.heads import Head
from interp.scan.table import HeadScan


def special_of(scan: HeadScan) -> list[int]:
    """The ids of the special tokens that a scan records, BOS included."""
    return sorted({*scan.made_by.get("special", []), scan.made_by.get("bos")} - {None})


def zoo_heads(scan: HeadScan) -> dict[str, Head]:
    """One head of each kind: the strongest whose first label it is, else the strongest with it.

    Kinds that no head carries are absent.
    """
    chosen = {}
    for kind in scan.kinds.values():
        heads = scan.having(kind.label)
        first = heads.loc[heads["label"] == kind.label]
        for name in (heads if first.empty else first)["name"].tolist()[:1]:
            chosen[kind.name] = Head.parse(name)
    return chosen


def probe_of(scan: HeadScan) -> dict[str, Any] | None:
    """The record of the repeated random tokens; None if the scores come from no scan."""
    return next((p for p in scan.made_by.get("probes", []) if p.get("periods")), None)


def scored_elsewhere(scan: HeadScan) -> list[str]:
    """The kinds that were not scored from the first repeat on, and where they were, in words."""
    scored_on = scan.made_by.get("scored_on", {})
    known = {"random": "before the first repeat", "text": "on natural text"}
    by_part: dict[str, list[str]] = {}
    for kind in scan.kinds.values():
        if (part := scored_on.get(kind.name, "repeated")) != "repeated":
            by_part.setdefault(known.get(part, "on prompts of their own"), []).append(kind.label)
    return [f"{', '.join(names)} {where}" for where, names in by_part.items()]


def scored_over(scan: HeadScan) -> str:
    """The queries that a score is a mean over, in words."""
    if probe_of(scan) is None:
        return "the queries of the labelled attention patterns"
    elsewhere = "; ".join(scored_elsewhere(scan))
    return f"all prompts of the scan{f' ({elsewhere})' if elsewhere else ''}"
