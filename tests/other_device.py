"""A device of our own, named `other`: the CPU's arithmetic, and wrong matrix products if asked.

Run in a process of its own: it stays registered as long as the process lives.
"""

from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "other"
libraries: list[torch.library.Library] = []
"""What is registered in them stays as long as they do."""

error = 0.0
"""The share by which its matrix products are too large."""

refused: set[torch.dtype] = set()
"""Types of numbers that it lacks."""

BY_HAND = {"copy_", "detach", "empty", "empty_strided", "resize_", "_copy_from", "_to_copy"}


class There(torch.Tensor):
    """A tensor on that device; `own` has its numbers, on the CPU."""

    @staticmethod
    def __new__(cls, own: torch.Tensor):
        if own.dtype in refused:
            raise TypeError(f"the device {NAME} has no {own.dtype}")
        made = torch._C._acc.create_empty_tensor(own.shape, own.dtype)
        made.__class__ = cls
        return made

    def __init__(self, own: torch.Tensor):
        self.own = own  # A view of another one's numbers stays a view: it can be written to.

    def __format__(self, form: str) -> str:
        return format(self.own, form)

    __torch_function__ = torch._C._disabled_torch_function_impl


def here(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else getattr(value, "own", value)


def there(value: Any) -> Any:
    return There(value) if type(value) is torch.Tensor else value


def register() -> None:
    """Make the device known."""
    _setup_privateuseone_for_python_backend(NAME)

    def through_cpu(op: Any, *args: Any, **options: Any) -> Any:
        if op.overloadpacket.__name__ in ("view", "_unsafe_view"):
            op = torch.ops.aten.reshape.default  # All tensors look contiguous from outside.
        found = op(*tree_map(here, args), **tree_map(here, options))
        if op.overloadpacket.__name__ in ("mm", "bmm", "addmm"):
            found = found * (1 + error)
        return tree_map(there, found)

    def copied(value: Any, *, device: Any = None, dtype: Any = None, **_: Any) -> torch.Tensor:
        own = here(value).to(dtype=dtype, copy=True)
        return own if device is not None and torch.device(device).type == "cpu" else There(own)

    def copy(source: Any, target: Any, non_blocking: bool = False) -> Any:
        here(target).copy_(here(source))
        return target

    def empty(size: Any, *_: Any, dtype: Any = None, **__: Any) -> torch.Tensor:
        return There(torch.empty(size, dtype=dtype))

    libraries.extend([torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")])
    libraries[0].fallback(through_cpu, "PrivateUse1")
    aten = libraries[1]
    aten.impl("_to_copy", copied, "PrivateUse1")
    aten.impl("_copy_from", copy, "PrivateUse1")
    aten.impl("empty.memory_format", empty, "PrivateUse1")
    aten.impl("empty_strided", empty, "PrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        aten.impl("detach", lambda value: There(value.own), key)
    # Torch itself would make these of others that write into tensors of a size not yet known.
    for name in torch._C._dispatch_get_all_op_names():
        space, _, called = name.partition("::")
        base, _, overload = called.partition(".")
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(
            name, "CompositeImplicitAutograd"
        )
        if space != "aten" or composite or base in BY_HAND or not hasattr(torch.ops.aten, base):
            continue
        op = getattr(getattr(torch.ops.aten, base), overload or "default", None)
        if op is not None and not op._schema.is_mutable:
            aten.impl(called, lambda *a, op=op, **o: through_cpu(op, *a, **o), "PrivateUse1")
