"""What was run, in words for a figure."""

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.kind import KINDS
from interp.scan.table import HeadScan
from interp.show.figures.texts import inches, prose
from interp.show.pages.scored import early_kinds, probe_of, scored_over


def model_name(scan: HeadScan) -> str:
    """The model's name; of a long one the end."""
    name = prose(str(scan.made_by.get("model", "attention patterns")))
    name = name if len(name) < 200 else "…" + name[-199:]
    while inches(name, 10.0) > 4.2:
        name = "…" + name[2:]
    return name


def what_was_run(scan: HeadScan) -> str:
    """The probe that the scores come from, in words."""
    probe = probe_of(scan)
    if probe is None:
        return "Labels of given attention patterns: no record of what was run."
    bos = "" if scan.made_by.get("bos") is None else "BOS, then "
    early = early_kinds(scan)
    return (
        f"{probe['rows']} prompts of {probe['length']} tokens: {bos}random tokens that repeat"
        f" every {min(probe['periods'])} to {max(probe['periods'])} tokens"
        f" (seed {scan.made_by.get('seed')}, {scan.made_by.get('dtype')}). Scored from the first"
        f" repeat on{f', but {early} before it' if early else ''}."
    )


def head_name(scan: HeadScan | None, head: Head) -> str:
    """The head with the model's name, its label and the score behind it, as far as known.

    Raises:
        InputError: If the scan lacks the head.
    """
    if scan is None:
        return str(head)
    rows = scan.frame.loc[scan.frame["name"] == str(head)].to_dict("records")
    if not rows:
        raise InputError(f"scan must hold {head}, got {len(scan.frame)} heads without it")
    label = rows[0]["label"]
    kind = _scored_kind(label)
    score = "" if kind is None else f" (score {rows[0][kind]:.2f})"
    return f"{model_name(scan)}: {head}, {label}{score}"


def about_score(scan: HeadScan | None, head: Head) -> list[str]:
    """What the score is that `head_name` gives, in a sentence, if it gives one."""
    labels = [] if scan is None else scan.frame.loc[scan.frame["name"] == str(head), "label"]
    if scan is None or not any(map(_scored_kind, labels)):
        return []
    return [f"The score is the mean attention mass on the kind's targets over {scored_over(scan)}."]


def _scored_kind(label: str) -> str | None:
    return next((kind.name for kind in KINDS.values() if kind.label == label), None)
