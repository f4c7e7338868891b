#!/usr/bin/env bash
# Two machines played on one: two network namespaces joined by a cable (veth), one `accelerate launch` in each, on CPUs, with each of
# the launch/ files that run there (FSDP2 needs GPUs). A signal to the second machine's process stops the run; the same commands go
# on; one process that never stops is compared.
#     sudo robustness/two_machines.sh PYTHON > results/two_machines.txt     (minutes a file; needs iproute2)
#     sudo env STEPS=60 robustness/two_machines.sh PYTHON two_machines_zero3     (only these files of launch/)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python}
configs=("${@:2}")
[ ${#configs[@]} -gt 0 ] || configs=(two_machines two_machines_zero2 two_machines_zero3)
steps=${STEPS:-120}
out=$(mktemp -d)
words=(recipe=mpp data.size=16 model.patch=4 model.width=64 model.depth=4 model.heads=2 model.mlp=128 optim.batch=32
    "optim.steps=$steps" optim.warmup=12 log.every=1 "eval.every=$steps" eval.images=64 compute.precision=float32 compute.threads=1
    log.tensorboard=false "out=$out")

for i in 1 2; do ip netns add "vit$i"; done
trap 'tail -n 3 "$out"/*.txt >&2; ip netns del vit1; ip netns del vit2; rm -rf "$out"' EXIT
ip link add cable1 netns vit1 type veth peer name cable2 netns vit2
for i in 1 2; do
    ip -n "vit$i" addr add "10.77.0.$i/24" dev "cable$i"
    ip -n "vit$i" link set "cable$i" up
    ip -n "vit$i" link set lo up
done

launch() { # on machine $1, as a process of its own
    ip netns exec "vit$1" env GLOO_SOCKET_IFNAME="cable$1" "$python" -m accelerate.commands.launch -q \
        --config_file "launch/$config.yaml" --num_processes 2 --machine_rank $(($1 - 1)) \
        --main_process_ip 10.77.0.1 --main_process_port 29511 \
        tools/pretrain.py "${words[@]}" compute.batch=8 "name=$config" >>"$out/machine$1-$config.txt" 2>&1
}

both() {
    launch 1 & first=$!
    launch 2 & second=$!
}

rows() { wc -l 2>/dev/null <"$out/$config/metrics.jsonl" || echo 0; }

"$python" -c 'from importlib.metadata import version
print("two machines:", *(f"{name} {version(name)}" for name in ("torch", "deepspeed", "accelerate")))'
"$python" tools/pretrain.py "${words[@]}" compute.batch=32 name=one >"$out/one.txt" 2>&1
for config in "${configs[@]}"; do
    echo "launch/$config.yaml"
    both
    until [ "$(rows)" -ge 20 ]; do sleep 0.1; kill -0 $first; done
    before=$(rows)
    worker=$(ps -eo pid=,args= | awk '/tools\/pretrain.py/ && !/accelerate/ {print $1}' | while read -r pid; do
        if [ "$(ip netns identify "$pid")" = vit2 ]; then echo "$pid"; fi; done)
    kill -TERM "$worker"
    wait $first $second || true # the launcher turns every status into 1: the folder says what happened
    echo "signalled after $before rows: $(grep stopped "$out/machine1-$config.txt")"
    both
    wait $first $second
    grep -h "^batch\|finished" "$out/machine1-$config.txt" | tail -n 2 | sed "s|$out/||"
    grep -h started "$out/$config/log.txt" | sed 's/, process .*//'
    "$python" - "$out" "$config" "$steps" <<'END'
import json, sys

out, config, steps = sys.argv[1:]
two, one = ([json.loads(line) for line in open(f"{out}/{name}/metrics.jsonl")] for name in (config, "one"))
assert [row["step"] for row in two] == [row["step"] for row in one] == list(range(1, int(steps) + 1))
apart = [abs(a["loss"] / b["loss"] - 1) for a, b in zip(two, one, strict=True)]
print(f"losses of steps 1 to {steps}, none twice, none missing; apart from one process that never stopped (relative): "
      f"first 10 steps {max(apart[:10]):.1e}, all {max(apart):.1e}")
END
done
