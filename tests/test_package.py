"""The wheel, built from the source distribution, works outside the clone."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from places import ROOT

USES = """
import interp
from interp.circuits.learned import FOLDER
from interp.kinds.probes import passages
from interp.show import figures

assert "site" in interp.__file__, interp.__file__
assert len(passages()) > 3 and len(interp.published_heads()) > 9
model = interp.load_model(FOLDER)
scan = interp.scan_heads(model, rows=2, length=24)
assert scan.heads("induction")
patterns = interp.attention_patterns(model, [list(range(8)) * 2])
interp.gallery(scan, patterns).save("gallery.html")
figures.save_figure(figures.score_mosaic(scan), "mosaic.svg")
"""


@pytest.mark.slow
def test_a_wheel_from_the_source_distribution_works_outside_the_clone(tmp_path):
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    clone = tmp_path / "clone"  # Without what earlier builds left.
    for name in tracked:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    build = [sys.executable, "-m", "build", "--outdir", tmp_path, clone]
    subprocess.run(build, check=True, capture_output=True, timeout=600)
    [source], [wheel] = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(source) as archive:
        assert any(name.endswith("/interp/trust/published.csv") for name in archive.getnames())
    files = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in tracked if name.startswith("interp/")} <= files
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel]
    subprocess.run(pip, check=True, timeout=600)
    for command in (["-m", "interp", "doctor"], ["-c", USES]):
        run = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={"PYTHONPATH": str(site), "PATH": "", "HOME": str(Path.home())},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert run.returncode == 0, run.stderr
