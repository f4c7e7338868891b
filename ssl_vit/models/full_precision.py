"""Parts of a network that autocast leaves alone."""

import torch


def full_precision(device: torch.device) -> torch.autocast:
    """Context manager: operations on a device take the precision of their inputs. Autocast does not
    know the meta device, on which a network is counted."""
    return torch.autocast("cpu" if device.type == "meta" else device.type, enabled=False)
