"""Runs of several processes, one after the other, under the configurations of launch/."""

from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env

from helpers.options import ROOT, TINY, altered

LAUNCH = ROOT / "launch"
STEPS = 8
LONG = altered(
    TINY,
    *(f"optim.steps={STEPS}", "log.every=1", f"eval.every={STEPS}", "checkpoint.every=100"),
    "compute.batch=8",
)
SERIES = """
import gc, json, os, signal, sys
import torch
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from ssl_vit import callbacks as base, inspection, metrics
from ssl_vit.objectives.mpp.network import MaskedPatchPrediction
import ssl_vit.jobs.train as job
from ssl_vit.jobs import best_checkpoint
from ssl_vit.training import distributed, preemption, sharding
from ssl_vit.errors import UserError
from ssl_vit.runs.folder import Run
from ssl_vit import resolve

inspection.save_figures = lambda *given: None  # neither is compared, and both take longer than the training
best_checkpoint.find_metric = metrics.Metric  # so that the best loss is not the last one
preemption.CONSENSUS_EVERY = 2  # a signal stops a run within 4 steps
gc.freeze()  # what is imported is looked through in every collection, of which Accelerate and DeepSpeed ask for two a run
start = distributed._start

def fsdp(recipe):
    accelerator = start(recipe)
    if "PLAY_FSDP" in os.environ:  # Accelerate itself takes it up on GPUs only, but then runs on CPUs as well
        how = dict(fsdp_version=2, reshard_after_forward=True, cpu_ram_efficient_loading=False)
        blocks = dict(auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"])
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(**how, **blocks)
        accelerator.state.distributed_type = DistributedType.FSDP
    return accelerator

distributed._start = fsdp
facts = {}
known = set(os.environ)
callbacks = job._callbacks
check = sharding.check_deepspeed

class Stops(base.Callback):
    sent = False
    def on_step(self, step):
        if not self.sent:  # a second signal after a second would end the process at once
            self.sent = True
            os.kill(os.getpid(), signal.SIGTERM)

def cut_all(config):
    check(config)
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 0  # or small tensors stay whole everywhere

sharding.check_deepspeed = cut_all
prepare = sharding.ZeroStrategy.prepare

def prepared(self):
    made = prepare(self)
    tensors = [x for flat in self.local_shards for x in (flat, *self.optimizer.state[flat].values())]
    facts[name] = {
        "stage": made.zero_optimization_stage(),
        "micro_batch": made.train_micro_batch_size_per_gpu(),
        "accumulation": made.gradient_accumulation_steps(),
        "clip": made.gradient_clipping(),
        "types": [*map(str, made.get_data_types()), str(made.communication_data_type)],
        "held": sorted({str(x.dtype) for x in tensors}),
        "reduced_in": sorted(map(str, self.zero.ipg_buckets)),
        "shares": sum(flat.numel() for flat in self.local_shards),
    }
    return made

sharding.ZeroStrategy.prepare = prepared
compiled = []
torch.nn.Module.compile = lambda self, **how: compiled.append([type(self).__name__, how])  # noted, not done: that takes minutes
forward = MaskedPatchPrediction.forward

def spoil(index):
    def spoilt(self, batch):
        step = forward(self, batch)
        corrupted = self.training and bool((batch.index == index).any())
        return step._replace(loss=step.loss + float("inf")) if corrupted else step  # with a gradient that is finite
    MaskedPatchPrediction.forward = spoilt if index is not None else forward

for name, environment, options, stop, index, port in json.loads(sys.argv[1]):
    for key in set(os.environ) - known:
        del os.environ[key]
    os.environ.update(environment)
    os.environ["MASTER_PORT"] = str(port)  # one for each: the store before may still be there
    job._callbacks = (lambda j: [*callbacks(j), Stops()]) if stop else callbacks
    spoil(index)
    compiled.clear()
    try:
        job.train(Run(resolve(options)))
    except UserError as error:
        facts[name] = str(error)
    except SystemExit as end:
        assert end.code == 75, end.code
    facts.setdefault(name, {})
    if isinstance(facts[name], dict):
        facts[name]["compiled"] = list(compiled)
if os.environ["RANK"] == "0":
    with open(sys.argv[2], "w") as file:
        json.dump(facts, file)
"""


def launched(name: str, *more: str) -> dict[str, str]:
    """What `accelerate launch` puts into the environment for one of the configurations in launch/;
    for ZeRO 1, which has none, that of ZeRO 2 with another stage."""
    if name == "zero1":
        return launched("zero2", *more) | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"}
    if name in ("ddp", "fsdp2"):
        return {"PLAY_FSDP": "1"} if name == "fsdp2" else {}
    words = ["--config_file", str(LAUNCH / f"{name}.yaml"), "--main_process_port", "0"]
    args = launch_command_parser().parse_args([*words, *more, "train.py"])
    args, defaults, _ = _validate_launch_command(args)
    args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    made = prepare_deepspeed_cmd_env(args)[1]
    return {key: value for key, value in made.items() if key.startswith("ACCELERATE_")}
