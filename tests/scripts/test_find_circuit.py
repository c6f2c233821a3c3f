import json

import torch
from invoked import invoke, refused

import interp
from interp.models import save


def test_the_circuit_and_its_graph_are_written(tmp_path):
    toy = interp.build_circuit("absolute", vocabulary=32, length=16)
    save(toy, tmp_path / "toy")
    a, b, c, d = toy.texts_of(torch.tensor([5, 6, 7, 8]))
    pair = {"clean": f"{a} {b} {c} {a}", "corrupted": f"{d} {b} {c} {a}"}
    pair |= {"right": f" {b}", "wrong": f" {c}"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair), encoding="utf-8")
    options = ("--model", tmp_path / "toy", "--pairs", tmp_path / "pairs.jsonl")
    done = invoke("find_circuit", *options, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("circuit.json", "circuit.png", "circuit.svg", "faithfulness.png", "faithfulness.svg")
    }
    edges = interp.Circuit.load(tmp_path / "out" / "circuit.json").to_frame()
    assert "right answer in 100% of the pairs" in done.stdout
    assert ["L0H3", "L1H5", "k"] in edges.loc[
        edges["kept"], ["source", "target", "path"]
    ].values.tolist()


def test_a_mistake_gets_one_line_and_writes_nothing(tmp_path):
    assert refused(invoke("find_circuit", "--task", "cooking", "--out", tmp_path / "out"), "--task")
    assert not (tmp_path / "out").exists()
