"""What the scores of a table were measured on, in words for pages and figures alike."""

from typing import Any

from interp.kinds.kind import kinds_in
from interp.scan.table import HeadScan


def probe_of(scan: HeadScan) -> dict[str, Any] | None:
    """The record of the random tokens that repeat; None where the scores come from no scan."""
    return next((p for p in scan.made_by.get("probes", []) if p.get("periods")), None)


def early_kinds(scan: HeadScan) -> str:
    """The kinds that were scored before the first repeat, in words; empty if none was."""
    scored_on = scan.made_by.get("scored_on", {})
    kinds = kinds_in(scan.frame.columns).values()
    return " and ".join(kind.label for kind in kinds if scored_on.get(kind.name) == "random")


def scored_over(scan: HeadScan) -> str:
    """What a score of the table is a mean over, in words."""
    if probe_of(scan) is None:
        return "the queries of the attention patterns that were labelled"
    early = early_kinds(scan)
    apart = f" ({early} before the first repeat, the others after it)" if early else ""
    return f"all prompts of the scan{apart}"
