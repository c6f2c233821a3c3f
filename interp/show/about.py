"""The record of a table of heads, in words and numbers for figures and pages."""

from dataclasses import asdict
from typing import Any

from interp.heads import Head
from interp.kinds.kind import kinds_in
from interp.kinds.scores import Thresholds
from interp.scan.table import HeadScan


def thresholds_of(scan: HeadScan) -> dict[str, Any]:
    """The thresholds of the scan; the defaults where it has no record of them."""
    return asdict(Thresholds()) | scan.made_by.get("thresholds", {})


def special_of(scan: HeadScan) -> list[int]:
    """The ids of the special tokens that a scan records, BOS included."""
    return sorted({*scan.made_by.get("special", []), scan.made_by.get("bos")} - {None})


def zoo_heads(scan: HeadScan) -> dict[str, Head]:
    """One head of each kind: the strongest whose first label it is, else the strongest with it.

    Kinds that no head carries are absent.
    """
    chosen = {}
    for kind in kinds_in(scan.frame.columns).values():
        heads = scan.having(kind.label)
        first = heads.loc[heads["label"] == kind.label]
        for name in (heads if first.empty else first)["name"].tolist()[:1]:
            chosen[kind.name] = Head.parse(name)
    return chosen


def probe_of(scan: HeadScan) -> dict[str, Any] | None:
    """The record of the repeated random tokens; None if the scores come from no scan."""
    return next((p for p in scan.made_by.get("probes", []) if p.get("periods")), None)


def early_kinds(scan: HeadScan) -> str:
    """The kinds that were scored before the first repeat, in words; empty if there are none."""
    scored_on = scan.made_by.get("scored_on", {})
    kinds = kinds_in(scan.frame.columns).values()
    return " and ".join(kind.label for kind in kinds if scored_on.get(kind.name) == "random")


def scored_over(scan: HeadScan) -> str:
    """The queries that a score is a mean over, in words."""
    if probe_of(scan) is None:
        return "the queries of the labelled attention patterns"
    early = early_kinds(scan)
    return f"all prompts of the scan{f' ({early}: before the first repeat)' if early else ''}"
