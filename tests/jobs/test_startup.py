"""What a run imports, and when: the first line comes before torch, and libraries that the run does
not use are not imported."""

import json

import pytest
import torch
from transformers import optimization

from helpers.launching import python
from helpers.options import SHORT, TINY, altered
from ssl_vit.recipe.schema import Optim
from ssl_vit.training.optim import LINEAR_END, share_of_lr

WATCHED = """
import json, sys
from ssl_vit.__main__ import main
lines, write = {}, sys.stdout.write
def note(text):
    for word in ("run ", "time "):
        if text.startswith(word):
            lines[word] = sorted({name.partition(".")[0] for name in sys.modules})
    return write(text)
sys.stdout.write = note
try:
    main(["pretrain", *sys.argv[1:]])
finally:
    print(json.dumps(lines))
"""


def test_the_first_line_comes_before_torch_and_what_is_not_used_is_not_imported(tmp_path):
    done = python("-c", WATCHED, *altered(TINY, *SHORT), f"out={tmp_path}", "name=run")
    assert done.returncode == 0, done.stderr
    imported = json.loads(done.stdout.splitlines()[-1])
    assert "torch" in imported["time "] and "torch" not in imported["run "]
    unused = {"datasets", "pandas", "transformers", "matplotlib", "deepspeed", "tensorboard"}
    assert not unused & {*imported["time "]}
    assert f"run         {tmp_path / 'run'}\n" in done.stdout


@pytest.mark.parametrize("steps,warmup", [(2, 0), (12, 2), (100, 99), (397, 31)])
def test_schedules_are_those_of_transformers_to_the_last_bit(steps, warmup):
    for schedule in ("cosine", "linear", "wsd"):
        optim = Optim(schedule=schedule, steps=steps, warmup=warmup, lr=3e-4)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=optim.lr)
        if schedule == "cosine":
            theirs = optimization.get_cosine_schedule_with_warmup(optimizer, warmup, steps)
        elif schedule == "wsd":
            theirs = optimization.get_wsd_schedule(
                optimizer, warmup, steps - optim.decay_from, steps, decay_type="1-sqrt"
            )
        else:
            theirs = optimization.get_polynomial_decay_schedule_with_warmup(
                optimizer, warmup, steps, lr_end=LINEAR_END
            )
        values = [share_of_lr(optim, step) for step in range(steps + 3)]
        assert values == [theirs.lr_lambdas[0](step) for step in range(steps + 3)]
