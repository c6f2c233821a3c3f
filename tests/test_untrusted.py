"""Files from anywhere: what is no model, table or run is refused in one line, and never run."""

import contextlib
import io
import json
import os
import pickle
import random
import re
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from places import ROOT
from safetensors.torch import load_file, save_file
from tiny_models import Marker, tiny

import interp
from interp.circuits import checkpoint
from interp.circuits.training import Recipe, Run
from interp.files import refuse_of_another
from interp.models import attention_only
from interp.models.weight_files import check_folder
from interp.scan.table import HeadScan


def refused(call, *args) -> str:
    """The one line that something is refused with."""
    with pytest.raises(interp.InputError) as caught:
        call(*args)
    told = str(caught.value)
    assert "\n" not in told
    assert len(told) < 700
    return told


def safetensors(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


TWICE = json.dumps({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
TWICE = TWICE[:-1] + b"," + TWICE[1:]
"""A header with a name twice, which safetensors itself accepts."""


def entry(start: int, stop: int, *, shape: int | None = None, dtype: str = "F32") -> dict:
    size = (stop - start) // 4 if shape is None else shape
    return {"dtype": dtype, "shape": [size], "data_offsets": [start, stop]}


@pytest.mark.fault("B83")
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "tokenizer.json"])
def test_a_pickle_of_any_name_in_a_model_is_never_opened(folder, tmp_path, name):
    marker = tmp_path / "marker"
    if name != "tokenizer.json":
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Marker(marker)))
    before = sorted(path.name for path in folder.iterdir())
    assert name in refused(interp.load_model, folder) or name == "tokenizer.json"
    assert not marker.exists()
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.fault("B83")
def test_a_pickle_with_the_name_of_a_result_is_never_opened(tmp_path):
    for name in ("heads.json", "heads.csv", "heads.parquet", "p.npy", "p.npz"):
        (tmp_path / name).write_bytes(pickle.dumps(Marker(tmp_path / "marker")))
        call = interp.read_patterns if name[0] == "p" else HeadScan.load
        assert name in refused(call, tmp_path / name)
    assert not (tmp_path / "marker").exists()


@pytest.mark.fault("B83")
def test_no_code_here_unpickles():
    ways = (
        r"(import|from) (pickle|marshal|shelve|dill|joblib)|\b(torch\.load|read_pickle|eval|exec)\("
    )
    ways += r"|weights_only\W+False|allow_pickle\W+True|trust_remote_code\W+True"
    for path in (*(ROOT / "interp").rglob("*.py"), *(ROOT / "scripts").glob("*.py")):
        found = re.search(rf"(?<!\.)({ways})", path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found}"


@pytest.mark.fault("B84")
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_model_of_code_is_refused(folder, file):
    settings = json.loads((folder / file).read_text())
    own = {"AutoConfig": "own.Config", "AutoTokenizer": ["own.Slow", "own.Fast"]}
    settings |= {"auto_map": own, "model_type": "own", "tokenizer_class": "OwnTokenizer"}
    (folder / file).write_text(json.dumps(settings))
    assert "code of its own" in refused(interp.load_model, folder)


OWN = {"auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
TEMPLATE = "{{ cycler.__init__.__globals__.os.system('touch marker') }}"


@pytest.mark.fault("B84")
@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("config.json", {**OWN, "model_type": "own", "text_config": OWN}),
        ("config.json", {"model_type": "llava", "text_config": OWN, "vision_config": OWN}),
        ("config.json", {"attn_implementation": "far/kernel", "_attn_implementation": "far/k"}),
        ("config.json", {"hidden_act": "own.run", "dtype": "own.run"}),
        ("generation_config.json", {"custom_generate": ".", "temperature": -1}),
        ("tokenizer_config.json", {"chat_template": TEMPLATE, "tokenizer_class": "own.Tokenizer"}),
    ],
)
def test_nothing_beside_the_weights_is_ever_run(folder, tmp_path, monkeypatch, file, settings):
    monkeypatch.chdir(tmp_path)
    usual = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(usual | settings))
    (folder / "custom_generate").mkdir()
    for code in ("own.py", "custom_generate/generate.py"):
        (folder / code).write_text(f"open({str(tmp_path / 'marker')!r}, 'w')\n")
    with contextlib.suppress(interp.InputError):
        interp.attention_patterns(interp.load_model(folder), "w3 w4")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-llama"]


def test_what_settings_ask_to_be_returned_changes_no_pattern(folder):
    usual = interp.attention_patterns(folder, "w3 w4 w5")
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"return_dict": False, "output_attentions": True, "output_hidden_states": True}
    (folder / "config.json").write_text(json.dumps(settings))
    assert torch.equal(interp.attention_patterns(folder, "w3 w4 w5"), usual)


def npz(*arrays: bytes) -> bytes:
    """An archive in which all arrays have one name."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for array in arrays:
            archive.writestr("layer0.npy", array)
    return packed.getvalue()


def npy(shape: str = "(1, 2, 2)", data: bytes = np.eye(2, dtype="<f4").tobytes()) -> bytes:
    told = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(told).to_bytes(2, "little") + told.encode() + data


LIES = [
    ("p.npy", npy() + b"more"),
    ("p.npy", npy(f"({2**42}, 2, 2)")),
    ("p.npy", npy("(-1, 2, 2)")),
    ("p.npy", npy("(open('marker', 'w'),)")),
    ("p.npz", npy()),
    ("p.npz", npz(npy(), npy())),
    ("p.npz", npz(npy(f"({2**40}, 2, 2)"))),
    ("p.npz", npz(npz(npy()))),
    ("p.npz", b"PK\x05\x06" + bytes(18)),
    ("t.txt", b"1 " + b"9" * 5000),
    ("t.json", b'{"tokens": [1, 2], "tokens": [3, 4]}'),
    ("t.json", b"[1, NaN]"),
    ("t.json", b"[" * 100_000),
]


def test_arrays_and_ids_that_lie_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "sound.npy", np.eye(2, dtype=np.float32)[None])
    interp.read_patterns("sound.npy", [3, 4])
    for name, content in LIES:
        (tmp_path / name).write_bytes(content)
        pair = ("sound.npy", name) if name.startswith("t") else (name, [3, 4])
        refused(interp.read_patterns, *pair)
    assert not (tmp_path / "marker").exists()


def test_an_archive_that_would_not_fit_once_unpacked_is_refused_before(tmp_path, monkeypatch):
    path = tmp_path / "p.npz"
    path.write_bytes(npz(npy("(1, 2000, 2000)", bytes(16_000_000))))
    assert path.stat().st_size < 50_000
    assert "rows must sum to 1" in refused(interp.read_patterns, path, [3] * 2000)
    monkeypatch.setattr("interp.memory.available", lambda: 10_000_000)
    monkeypatch.setattr("numpy.lib.format.read_array", None)
    assert "arrays must fit in memory, got 0.01 GiB" in refused(
        interp.read_patterns, path, [3] * 2000
    )


def test_a_device_is_never_read_for_a_record(tmp_path):
    (tmp_path / checkpoint.RECORD).symlink_to("/dev/zero")
    assert "got a folder or a device" in refused(checkpoint.record, tmp_path)
    refuse_of_another(tmp_path, "a model")


@pytest.mark.fault("B80")
def test_a_file_of_weights_that_is_cut_anywhere_is_refused(folder):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    last = len(content) - 1
    for end in (last, data + 1, data, data - 1, data // 2, 9, 8, 7, 0):
        os.truncate(path, end)
        assert "model.safetensors" in refused(check_folder, folder)


def test_flipped_bits_in_a_header_are_refused_or_leave_a_model(folder):
    path, chance = folder / "model.safetensors", random.Random(0)
    content = path.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    for turn in range(60):
        damaged = bytearray(content)
        damaged[chance.randrange(data)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(interp.InputError):
            check_folder(folder)
            if turn % 20 == 0:
                interp.load_model(folder)


CONTRADICTIONS = [
    safetensors({}, length=2**62),
    safetensors({"a": entry(0, 2**50)}),
    safetensors({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
    safetensors({"a": entry(0, 8, shape=3)}, bytes(8)),
    safetensors({"a.weight": entry(0, 8, dtype="I32")}, bytes(8)),
    safetensors(TWICE),
    safetensors(b"[" * 100_000),
    safetensors({}),
]


def test_a_file_of_weights_that_contradicts_itself_is_refused(folder):
    for content in CONTRADICTIONS:
        (folder / "model.safetensors").write_bytes(content)
        assert str(folder) in refused(interp.load_model, folder)


def test_a_part_of_the_weights_that_is_elsewhere_or_missing_is_refused(folder):
    index = folder / "model.safetensors.index.json"
    weights = {"model.embed_tokens.weight": "model.safetensors"}
    (folder / "part.safetensors").mkdir()
    (folder.parent / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    absent = ("model-2.safetensors", "a\x00b", "x" * 300, "part.safetensors")
    for part in ("../model.safetensors", "/etc/passwd", *absent):
        index.write_text(json.dumps({"weight_map": {**weights, "lm_head.weight": part}}))
        assert "must have all parts of its weights" in refused(interp.load_model, folder)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("num_hidden_layers", 1, "beyond 1 layers"),
        ("num_hidden_layers", 10**9, "more layers than there are tensors"),
        ("num_labels", 10**9, "more layers than there are tensors"),
        ("vocab_size", 10**9, "must fit in memory"),
        ("intermediate_size", 48, "shape [32, 64] for model.layers.0.mlp.down_proj"),
        ("hidden_size", "32", "hidden_size must"),
        ("model_type", "\u202eno\x00ne" * 100, "could not be loaded"),
        ("rope_parameters", [1], "could not be loaded"),
    ],
)
def test_settings_that_do_not_belong_to_the_weights_are_refused(folder, setting, value, message):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, setting: value}))
    told = refused(interp.load_model, folder)
    assert message in told
    assert "\x00" not in told
    assert "\u202e" not in told


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_damaged_settings_are_refused_or_leave_a_model(folder, file):
    path, chance = folder / file, random.Random(0)
    content = path.read_bytes()
    for damaged in (b"\xff\xfe", content[: len(content) // 2]):
        path.write_bytes(damaged)
        assert file in refused(interp.load_model, folder)
    for damaged in (b"", b"null", b"[]", b"[" * 100_000):
        path.write_bytes(damaged)
        with contextlib.suppress(interp.InputError):
            interp.load_model(folder)
    for _ in range(20):
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(interp.InputError):
            interp.load_model(folder)


def test_what_is_no_file_in_a_model_is_refused_and_never_read(folder):
    config = folder / "config.json"
    for target in (None, "/dev/zero", "config.json"):
        config.unlink()
        os.mkfifo(config) if target is None else config.symlink_to(target)
        assert "config.json" in refused(interp.load_model, folder) or target == "config.json"


def test_links_to_files_are_followed_as_the_hubs_cache_has_them(folder, tmp_path):
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    assert interp.load_model(folder).n_layers == 2


@pytest.mark.fault("B82")
def test_attention_weights_under_other_names_are_not_made_up(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    renamed = {name.replace("self_attn.", "other.self_attn."): w for name, w in weights.items()}
    save_file(renamed, path, metadata={"format": "pt"})
    assert "got none for model.layers.0.self_attn" in refused(interp.load_model, folder)


@pytest.fixture(scope="module")
def scan():
    return interp.scan_heads(tiny("gpt2"), rows=1)


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The bytes with one to four of them changed, taken out or put in."""
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 4])):
        at, way = chance.randrange(len(changed)), chance.random()
        if way < 0.6:
            changed[at] ^= 1 << chance.randrange(8)
        elif way < 0.8:
            del changed[at : at + chance.randrange(1, 20)]
        else:
            changed[at:at] = chance.choice([b"null", b"1e999", b"NaN", b"\x00", b'""', b"9" * 400])
    return bytes(changed)


def use(found: HeadScan, folder: Path) -> None:
    """All that a table is asked for."""
    assert repr(found)
    found.summary(), found.by_distance(), found.heads("sink")
    found.save(folder / "again.csv")


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
def test_a_table_that_is_cut_or_changed_anywhere_is_refused_or_a_table(scan, tmp_path, ending):
    path, chance = tmp_path / f"heads.{ending}", random.Random(0)
    scan.save(path)
    content = path.read_bytes()
    cut = [content[:end] for end in range(0, len(content) - 1, len(content) // 20)]
    for damaged in (*cut, *(mutated(content, chance) for _ in range(30))):
        path.write_bytes(damaged)
        with contextlib.suppress(interp.InputError):
            use(HeadScan.load(path), tmp_path)


HOSTILE = None, -1, 10**9, 10**30, -2.0, 1e308, "", "../../x", "a\u202e\x00b", "x" * 300, [1], [{}]


def edited(content: str, where: tuple, value: object) -> str:
    table = inner = json.loads(content)
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = value
    return json.dumps(table)


def test_a_table_edited_by_hand_is_refused_or_a_table(scan, tmp_path):
    path, chance = tmp_path / "heads.json", random.Random(0)
    scan.save(path)
    content = path.read_text(encoding="utf-8")
    names = [("heads", 0, name) for name in json.loads(content)["heads"][0]]
    names += [("made_by", name) for name in scan.made_by] + [("heads",), ("made_by",)]
    for where in names:
        path.write_text(edited(content, where, chance.choice(HOSTILE)), encoding="utf-8")
        with contextlib.suppress(interp.InputError):
            use(HeadScan.load(path), tmp_path)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("heads", 0, "induction"), 1.5),
        (("heads", 0, "labels"), [1]),
        (("made_by", "scored_on"), "all"),
        (("schema_version",), 99),
    ],
)
def test_what_is_wrong_with_a_table_is_named(scan, tmp_path, where, value):
    path = tmp_path / "heads.json"
    scan.save(path)
    path.write_text(edited(path.read_text(encoding="utf-8"), where, value), encoding="utf-8")
    assert str(where[-1]) in refused(HeadScan.load, path)


RECIPE = Recipe(length=18, vocabulary=20, most=8, only=4, width=8, heads=2, rows=2, least=2)


def learner() -> torch.nn.Module:
    return attention_only(n_ids=21, n_ctx=18, d_model=8, n_heads=2, n_layers=2, seed=0)


def test_a_checkpoint_that_is_cut_or_changed_is_refused_and_the_model_stays_as_it_was(tmp_path):
    run, chance = Run(learner(), RECIPE), random.Random(0)
    run.look()
    run.advance()
    run.look()
    checkpoint.save(run, tmp_path)
    path = tmp_path / checkpoint.FILE
    content = path.read_bytes()
    head = content[: 8 + int.from_bytes(content[:8], "little")]
    cut = [content[:end] for end in range(0, len(content) - 1, len(content) // 20)]
    changed = [mutated(head, chance) + content[len(head) :] for _ in range(60)]
    start, stop = (len(head) + at for at in json.loads(head[8:])["luck"]["data_offsets"])
    changed += [content[:start] + bytes([255]) * (stop - start) + content[stop:]]
    model = learner()
    first = {name: weight.clone() for name, weight in model.state_dict().items()}
    for damaged in (*cut, *changed):
        path.write_bytes(damaged)
        try:
            checkpoint.resumed(model, RECIPE, tmp_path)
            model.load_state_dict(first)
        except interp.InputError:
            state = model.state_dict()
            assert all(torch.equal(state[name], weight) for name, weight in first.items())


def test_a_record_of_a_run_that_is_none_is_refused(tmp_path):
    for text in ("", "null", "[]", "{}", "[" * 100_000, '{"recipe": {}}'):
        (tmp_path / checkpoint.RECORD).write_text(text)
        assert "must be the record of a finished run" in refused(checkpoint.record, tmp_path)


def test_an_index_that_maps_nothing_is_refused(folder):
    for content in ("[]", "{}", '{"weight_map": null}', "null"):
        (folder / "model.safetensors.index.json").write_text(content)
        assert "must be an index of weights" in refused(check_folder, folder)
