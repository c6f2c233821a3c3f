"""What the README says is what the repository does."""

import functools
import pydoc
import re
import subprocess
from importlib.metadata import version

import pytest
from places import ROOT

import interp

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [c.strip() for c in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)]
PUBLIC = [name for name in dir(interp) if not name.startswith("_")]


def test_the_readme_is_short_and_names_everything_public_and_every_script():
    assert len(README.splitlines()) <= 150
    rows = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", README, re.MULTILINE)
    functions = re.findall(r"`([a-z_]+)`", " ".join(rows))
    assert sorted(functions) == [name for name in PUBLIC if name.islower()]
    assert all(f"`{name}`" in README for name in PUBLIC)
    scripts = re.findall(r"`(scripts/\w+\.py)`", README)
    assert sorted(scripts) == [
        f"scripts/{path.name}" for path in sorted((ROOT / "scripts").glob("*.py"))
    ]


def test_help_fits_on_two_screens_and_lists_every_public_name_once():
    assert len(pydoc.plain(pydoc.render_doc(interp)).splitlines()) <= 100
    listed = re.findall(r"^    ([A-Za-z_]+)  ", interp.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == PUBLIC


def test_there_are_two_commands_of_one_line_each_with_an_environment_of_its_own():
    assert len(COMMANDS) == 2
    for command in COMMANDS:
        assert "\n" not in command
        environment = re.match(r"python3 -m venv (\S+) && ", command)
        assert environment
        assert command.count(f"{environment[1]}/bin/python -m pip install") == 1
    assert COMMANDS[0].split()[3] != COMMANDS[1].split()[3]


def test_the_decisive_check_runs_the_readmes_test_command():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if line.startswith(("test_command=", "setup="))]
    code.append('printf "%s\\n" "$test_command" "$setup"')
    done = subprocess.run(
        ["bash", "-c", "\n".join(code)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [COMMANDS[1], COMMANDS[1].rpartition(" && ")[0]]


def test_the_version_installed_is_the_one_of_the_package():
    assert version("interp") == interp.__version__


@pytest.mark.real_model
def test_the_python_lines_run_and_do_what_their_comments_say(
    real_model, real_scan, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code
    monkeypatch.setitem(vars(interp), "load_model", lambda: real_model)
    fewer = {
        "scan_heads": {"rows": 2},
        "path_effects": {"rows": 2},
        "verify": {"draws": 1, "methods": ["zero"]},
    }

    def sparing(function, less, *given, **settings):
        whole = function is scan_heads and not settings
        return real_scan if whole else function(*given, **{**settings, **less})

    scan_heads = interp.scan_heads
    for name, less in fewer.items():
        call = functools.partial(sparing, getattr(interp, name), less)
        monkeypatch.setitem(vars(interp), name, call)
    names: dict = {}
    exec(code[1], names)
    assert {path.name for path in tmp_path.iterdir()} == {
        "heads.parquet",
        "mosaic.svg",
        "gallery.html",
    }
    assert f"[{', '.join(map(str, real_scan.heads('induction')[:3]))}, ...]" in code[1]
    assert "L18H6" not in map(str, names["weaker"].heads("induction"))
    assert names["verdicts"].labels["induction"].verdict.startswith("causal")
