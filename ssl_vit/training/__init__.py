"""Train an objective: the loop, optimisation, state and checkpoints, strategies (DDP, ZeRO, FSDP2),
heartbeat and preemption.
"""
