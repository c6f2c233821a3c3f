"""Attention on another device is compared with the CPU's."""

import copy
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import transformers
from labelled import common_words
from places import TESTS
from tiny_models import SMALL, scaled, tiny
from torch.utils import backend_registration

from interp.models.off_cpu import largest_difference

ENCODERS = {
    "bert": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(vocab_size=200, intermediate_size=64, **SMALL)
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=200, d_model=32, num_layers=2, num_heads=4, d_ff=64, d_kv=8
        )
    ),
}


def opened(family: str) -> Any:
    model = scaled(ENCODERS[family]()) if family in ENCODERS else tiny(family)
    model.set_attn_implementation("eager")
    return model


@pytest.mark.fault("B42")
@pytest.mark.parametrize("family", ["gpt2", "jamba", *ENCODERS])
def test_a_difference_is_found_in_every_kind_of_model(family):
    model = opened(family)
    other = copy.deepcopy(model)
    assert largest_difference(model, other) == 0
    with torch.no_grad():
        for name, weight in other.named_parameters():
            if "norm" not in name.lower():
                weight *= 1.1
    assert 0.005 < largest_difference(model, other) <= 1


def test_the_difference_is_the_largest_of_any_probability():
    model, other = opened("gpt2"), opened("gpt2")
    with torch.no_grad():
        # No queries and keys: even attention.
        other.transformer.h[1].attn.c_attn.weight[:, :64] = 0
        other.transformer.h[1].attn.c_attn.bias[:64] = 0
        apart = [
            (model(ids, output_attentions=True).attentions[1] - even).abs().max().item()
            for n in (2, 9, 33)
            for ids in [torch.arange(2 * n).view(2, n)]
            for even in [torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]]
        ]
    assert largest_difference(model, other) == pytest.approx(max(apart), abs=1e-6)


def test_nan_counts_as_a_difference_of_1():
    model, other = opened("gpt2"), opened("gpt2")
    with torch.no_grad():
        other.transformer.h[0].attn.c_attn.weight.fill_(float("nan"))
    assert largest_difference(model, other) == 1


PROGRAM = """
import sys
import interp, other_device, pandas as pd, torch
from interp.models.off_cpu import off_cpu
from interp.scan.report import report

folder = sys.argv[1]
other_device.register()
other_device.refused.add(torch.float64)
assert interp.load_model(folder, device="other").off_cpu is None
for other_device.error in (0, 0.002):
    model = interp.load_model(folder, device="other", compare_with_cpu=True)
    print(model.off_cpu)
scan = interp.scan_heads(model, rows=1, quick=True)
print(scan.made_by["device"], scan.made_by["off_cpu"])
model.plain.model._hf_hook = None  # As of a layer that is fetched when it runs.
assert off_cpu(model.plain, "spread") is None
print(*(part for part in report(scan, 1) if isinstance(part, str)))

other_device.error = 0
columns, scores = [], []
for device in ("cpu", "other"):
    model = interp.load_model(folder, device=device)
    frame = interp.scan_heads(model, rows=2, length=24).frame
    columns.append(frame.select_dtypes("number"))
    found = interp.composition_scores(model, distance=1)
    scores.append(torch.stack([found.scores(kind).cpu() for kind in "QKV"]))
assert {"induction_logit_effect", "text_sink_value_weighted", "ov_copying"} <= {*columns[1]}
pd.testing.assert_frame_equal(*columns, rtol=1e-3, atol=1e-4)
torch.testing.assert_close(*scores, equal_nan=True)
"""


@pytest.mark.fault("B42", "C20")
@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch knows no devices that are written in Python",
)
def test_another_device_is_compared_on_request_and_gives_every_column_without_float64(tmp_path):
    folder = tmp_path / "tiny-llama"
    tiny("llama").save_pretrained(folder)
    common_words().save_pretrained(folder)
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    right, wrong, record, told = ended.stdout.split("\n", 3)
    assert float(right) < 1e-5  # The same float32 sums in another order.
    assert 0.001 < float(wrong) < 0.1
    assert record == f"other {wrong}"
    assert f"float32 on other (attention differs up to {float(wrong):.2g} from the CPU)" in told
    warnings = [line for line in ended.stderr.splitlines() if " on other " in line]
    assert warnings == [
        f"attention of tiny-llama on other differs from the CPU by up to {float(wrong):.2g}:"
        " use the CPU",
        "attention of spread on other could not be compared with the CPU: ValueError: its weights"
        " are in several places",
    ]
