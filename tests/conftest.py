import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # As many workers as cores: one for each.

import pytest
from filelock import FileLock
from places import SCRIPTS
from tiny_models import tiny, words_tokenizer

import interp


@pytest.fixture
def folder(tmp_path):
    """A local Hugging Face folder with a tiny grouped-query model and its tokenizer."""
    path = tmp_path / "tiny-llama"
    tiny("llama").save_pretrained(path)
    words_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def real_model():
    return interp.load_model()


@pytest.fixture(scope="session")
def readme_run(tmp_path_factory):
    """The README's first command on the default model, run once for all workers.

    `.folder` has the files it wrote, `.stdout` and `.stderr` what it printed.
    """
    home = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        home = home.parent  # Each worker has a folder of its own in it.
    folder = home / "readme-run"
    with FileLock(home / "readme-run.lock"):
        if not (folder / "code").exists():
            folder.mkdir()
            script = SCRIPTS / "find_induction_heads.py"
            with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
                command = [sys.executable, str(script), "--out", str(folder / "out")]
                code = subprocess.run(command, stdout=out, stderr=err, check=False).returncode
            (folder / "code").write_text(str(code))
    printed = {name: (folder / name).read_text("utf-8") for name in ("code", "stdout", "stderr")}
    assert printed["code"] == "0", printed["stderr"]
    return SimpleNamespace(folder=folder / "out", **printed)


@pytest.fixture(scope="session")
def real_scan(readme_run):
    """The scan of the default model, as `scan_heads(load_model())` makes it."""
    return interp.HeadScan.load(readme_run.folder / "heads.parquet")


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Opens a file; at the end nothing may have complained or asked for anything."""
    complaints, contexts = [], []

    def opened(path, **settings):
        context = chromium.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:"))
                else complaints.append(request.url)
            ),
        )
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
