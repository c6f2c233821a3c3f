"""The one door to Ray: `RayExecutor`, an executor for `interp.sweep` on a cluster."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from interp.errors import InputError, quoted, told

PASSED = (
    *("PYTHONPATH", "OMP_NUM_THREADS", "INTERP_CACHE"),
    *("HF_HOME", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"),
)
"""Variables of the environment that Ray's workers get too; it passes none by itself."""

_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
"""Settings that make a Ray of our own listen on the loopback interface, and ask for a token."""


class RayExecutor:
    """Ray as an executor: `interp.sweep(models, out=..., executor=RayExecutor("auto"))`.

    Ray runs a unit again if its worker or its node dies. The process's handler of SIGTERM, which
    Ray replaces, is put back. Use it in a `with` block, or call `shutdown`.

    Args:
        address: `local` starts Ray on this machine, on the loopback interface and without its
            dashboard; `auto` joins the cluster that this machine is a node of; else the address of
            a cluster, such as `10.0.0.1:6379` or `ray://head:10001`.
        resources: What a unit needs, such as `num_cpus=1` or `num_gpus=1`.

    Raises:
        InputError: If Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str = "local", **resources: float) -> None:
        if address == "local":
            for name, value in _LOOPBACK.items():
                os.environ.setdefault(name, value)  # Ray reads them when it is imported.
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise InputError("ray must be installed: pip install 'interp[ray]'") from None
        variables = {name: os.environ[name] for name in PASSED if name in os.environ}
        options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        in_main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGTERM) if in_main else None
        try:
            ray.init(
                address,
                log_to_driver=False,
                logging_level="error",
                runtime_env={"env_vars": variables},
                **options,
            )
        except Exception as error:
            raise InputError(
                f"ray must be a cluster that can be reached, got {quoted(address)}: {told(error)}"
            ) from None
        finally:
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)
        self._ray, self._resources = ray, {"num_cpus": 1, **resources}

    def submit(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function(*args)` on the cluster; the future has `done()` and `result()`."""
        task = self._ray.remote(**self._resources)(_called)
        return task.remote(function, *args).future()

    def shutdown(self) -> None:
        """Leave the cluster, or stop the Ray that `local` started."""
        self._ray.shutdown()

    def __enter__(self) -> "RayExecutor":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _called(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)
