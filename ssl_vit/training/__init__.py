"""The training loop, optimisation, state and checkpoints; strategies (DDP, ZeRO, FSDP2), heartbeat,
preemption."""
