"""Print versions, devices, cache folder and default model: what a bug report needs.

Examples:
    interp doctor
    interp doctor --json
"""

import platform

from interp import command


def main() -> None:
    import torch

    from interp.files import versions
    from interp.models.fetch import MEMBER, cache_folder

    file = cache_folder() / MEMBER.rpartition("/")[2]
    facts = {
        **versions(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else "not available",
        "mps": "available" if torch.backends.mps.is_available() else "not available",
        "cache": str(cache_folder()),
        "default model": "downloaded" if file.exists() else "not downloaded yet",
    }
    command.show(*(f"{name}: {fact}" for name, fact in facts.items()), result=facts)
