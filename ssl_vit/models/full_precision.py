"""Switch autocast off for parts of a network."""

import torch


def full_precision(device: torch.device) -> torch.autocast:
    """Return a context manager that switches autocast off, so that operations keep their precision.

    Args:
        device: Device of the tensors. For the meta device, which autocast does not support, the
            context manager of the CPU is returned.
    """
    return torch.autocast("cpu" if device.type == "meta" else device.type, enabled=False)
