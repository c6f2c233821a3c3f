"""The dependence of scores on irrelevant conditions: scans with other seeds, lengths, formats."""

from collections.abc import Mapping

import pandas as pd

from interp.errors import InputError
from interp.kinds.builtin import LABELS
from interp.scan.table import HeadScan


def compare_scans(scans: Mapping[str, HeadScan]) -> pd.DataFrame:
    """Scores of the same heads under several conditions, and which labels flip.

    Args:
        scans: Scans of one model, by condition; the others are compared with the first.

    Returns:
        One row for each head and kind that holds under some condition: `name`, `kind`, the
        score under each condition (in [0, 1]; missing where it could not be measured),
        `lowest`, `highest`, `spread` (standard deviation over conditions), and `flips`, the
        conditions under which the label holds where it does not in the first, or the other
        way round, separated by semicolons.

    Raises:
        InputError: If there are fewer than two conditions, or different heads.
    """
    if len(scans) < 2:
        raise InputError(f"scans must be of at least two conditions, got {len(scans)}")
    frames = {name: scan.frame.set_index("name") for name, scan in scans.items()}
    first = next(iter(frames.values()))
    if any(not frame.index.equals(first.index) for frame in frames.values()):
        raise InputError("scans must be of the same heads, got different ones")
    rows = []
    for kind, label in LABELS.items():
        holds = pd.DataFrame(
            {c: [label in labels for labels in f["labels"]] for c, f in frames.items()},
            index=first.index,
        )
        for head in first.index[holds.any(axis=1)]:
            scores = {c: frame.loc[head, kind] for c, frame in frames.items()}
            measured = pd.Series(scores, dtype="Float64").dropna()
            changed = holds.loc[head] != holds.loc[head].iloc[0]
            spread = (measured.min(), measured.max(), measured.std())
            rows.append([head, kind, *scores.values(), *spread, ";".join(changed.index[changed])])
    columns = ["name", "kind", *frames, "lowest", "highest", "spread", "flips"]
    return pd.DataFrame(rows, columns=columns)
