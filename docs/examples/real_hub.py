"""Check push, milestones and pull on the real Hub, by hand.

The tests of the package use only a small server on this machine.

    HF_TOKEN=... python docs/examples/real_hub.py USER/NAME

USER/NAME must not exist yet. The script makes a private repository and does not remove it: remove
the repository on the website. The script uses Xet if hf_xet is installed. For LFS set
HF_HUB_DISABLE_XET=1. If all checks pass, then on huggingface.co

1. A run pushes the milestone, the end and the state to three branches, each in a single commit. A
   branch begins with the repository's first commit, so there are two commits. The state is
   squashed to a single commit.
2. The export of each branch and the pulled checkpoint have the same bits as on this machine.
3. A second push makes no commit.
4. A push that is killed after some seconds leaves a branch unchanged or complete, and the next push
   completes the branch.
5. A run of another recipe is refused.
6. timm opens the encoder from the Hub.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import timm
from huggingface_hub import HfApi, snapshot_download
from safetensors.torch import load_file, save

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from ssl_vit.hub.state_io import pack_newest  # noqa: E402
from ssl_vit.recipe import export_files  # noqa: E402

API = HfApi()


def tool(name: str, *words: str, fails: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / f"{name}.py", *words], capture_output=True, text=True
    )
    assert bool(done.returncode) is fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def branches(repo: str) -> dict[str, str | None]:
    names = ("main", "state", "step-000000008")
    return {name: API.repo_info(repo, revision=name).sha for name in names}


def check(text: str, holds: bool) -> None:
    print(f"{'ok' if holds else 'FAILED'}  {text}", flush=True)
    if not holds:
        sys.exit(1)


def double_heads(export: Path) -> None:
    """Double the heads of an export, with a new digest in config.json as in a new export."""
    path, config = export / "heads.safetensors", export / "config.json"
    weights = save({name: 2 * value for name, value in load_file(path).items()})
    path.write_bytes(weights)
    known = json.loads(config.read_text())
    digests = (
        known[export_files.DIGESTS]
        | export_files.add_digests({}, {path.name: weights})[export_files.DIGESTS]
    )
    config.write_text(json.dumps(known | {export_files.DIGESTS: digests}))


def main(repo: str) -> None:
    out = Path(tempfile.mkdtemp())
    sizes = "data.size=16 model.patch=4 model.width=32 model.depth=2 model.heads=2 model.mlp=64"
    steps = "optim.steps=12 optim.batch=16 optim.warmup=2 checkpoint.every=4 compute.compile=false"
    words = ["recipe=mpp", *sizes.split(), *steps.split(), f"out={out}", f"hub.repo={repo}"]
    check(f"{repo} is not there yet", not API.repo_exists(repo))
    milestones = ["hub.every=8", "hub.state=true", "hub.wait=600"]
    said = tool("pretrain", *words, "name=run", *milestones)
    there, run = branches(repo), out / "run"
    check("nothing is pending", "not pushed" not in said)
    check("the repository is private", bool(API.repo_info(repo).private))
    commits = {name: len(API.list_repo_commits(repo, revision=name)) for name in there}
    check(f"commits: {commits}", commits == {"main": 2, "step-000000008": 2, "state": 1})

    def same(name: str = "model.safetensors") -> bool:
        pushed = Path(snapshot_download(repo, revision="main")) / name
        return pushed.read_bytes() == (run / "export" / name).read_bytes()

    check("the export on the Hub has this machine's bits", same() and same("heads.safetensors"))
    step = Path(snapshot_download(repo, revision="step-000000008"))
    check("the milestone has weights of its own", (step / "model.safetensors").exists())
    tool("pull", f"hf-hub:{repo}", f"out={out}/pulled")
    ours, theirs = (pack_newest(folder / "checkpoints") for folder in (run, out / "pulled" / "run"))
    check("the pulled checkpoint has these bits", ours == theirs)
    tool("push", str(run))
    check("another push makes no commit", branches(repo) == there)
    for seconds in (4.0, 6.0, 8.0):
        former = branches(repo)["main"]
        double_heads(run / "export")
        killed = subprocess.Popen([sys.executable, ROOT / "tools" / "push.py", str(run)])
        time.sleep(seconds)
        killed.kill()
        killed.wait()
        whole = branches(repo)["main"] == former or same("heads.safetensors")
        tool("push", str(run))
        check(f"killed after {seconds} s: whole or the former, then whole", whole)
        check("the next push completes it", same("heads.safetensors"))
    refused = tool("pretrain", *words, "name=other", "optim.lr=0.5", "hub.wait=600")
    check("another recipe is refused", "a run of another recipe (optim.lr" in refused)
    net = timm.create_model(f"hf-hub:{repo}", pretrained=True)
    check("timm opens it", net.num_features == 32)


if __name__ == "__main__":
    main(sys.argv[1])
