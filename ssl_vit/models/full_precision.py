"""Switch autocast off for parts of a network."""

import torch


def full_precision(device: torch.device) -> torch.autocast:
    """Return a context manager without autocast: operations keep the precision of their inputs.

    Autocast does not support the meta device, on which costs are counted, so the CPU's is used
    there.
    """
    return torch.autocast("cpu" if device.type == "meta" else device.type, enabled=False)
