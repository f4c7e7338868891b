"""Every key of a study's file and what it means: the one list that files are checked against and
docs/study_files.md is made of."""

STUDY = {
    "title": "What the study asks: the first line of its report.",
    "extends": "A study, or a file beside this one, whose keys hold where this one has none; its"
    " `options` and those of its parts are added to; of its keys and parts those are left out that"
    " are null here.",
    "places": "Names that the command line gives a value: `{cifar10}` in options is what"
    " `cifar10=PATH` says. Arms that need one that is not given are left out, and named.",
    "seeds": "Whole numbers, or 3 for the first three: each task is run with each. Default: 0"
    " alone.",
    "arms": "{name: description} of what is compared.",
    "benchmark": "vtab: the arms are the benchmark's tasks, `{task}` and `{classes}` in options.",
    "vary": "An axis over any key: {key: values}, or {any name: mappings of keys that are set"
    " together}, every combination of several; or a list of named settings. They are arms; parts"
    " that pre-train have the values, others name them: `{data.size}`.",
    "match": "What arms have in common: steps, or exaflop, which sets optim.steps of each arm.",
    "labels": "An axis of shares of the labels, such as {share: 0.01, steps: 400}: parts that name"
    " `{share}` or another key of it are repeated for each, and so are the parts that need them.",
    "images": "The same for shares of the images of pre-training.",
    "compute": "The same for lengths of pre-training, {steps: 1000}.",
    "options": "Options of every part, below its own.",
    "parts": "{name: part}; a part that another's options name is done first.",
    "report": "What the report compares.",
}
PART = {
    "extends": "A part whose tool, options and by_arm it has. Options of its own come before those;"
    " a by_arm of its own is in place of the other's.",
    "tool": "pretrain, finetune or evaluate.",
    "seeds": "In place of the study's.",
    "options": "Those of the tool. `{NAME}` is a place or the run of the part NAME of the same arm"
    " and seed, `{seed}` the task's seed.",
    "by_arm": "{arm: options of its own}; arms that are not named do not have the part.",
    "grid": "Axes of this part alone, {key: values} or {any name: mappings of keys that are set"
    " together}, every combination.",
    "grid_by_arm": "{arm: other values of the grid's entries}.",
    "best": "{of: a part with a grid, by: a metric of held-out images}: takes the values of that"
    " part's best runs.",
}
REPORT = {
    "final": "The part whose test predictions are compared.",
    "probes": "Parts of tool evaluate whose metrics are shown, at each share or length where they"
    " are repeated.",
    "baseline": "The arm that every other is compared with.",
    "candidate": "The arm that the answer is about.",
    "reference": "An arm that the others are compared with too.",
    "extra": "Parts of tool finetune that are shown beside the final one, compared with nothing.",
    "paper": "{arm: the published value}, a column.",
    "differs": "Texts: what differs from the paper.",
    "pairs": "Two arms each, `A:B`: A minus B; several have corrected intervals beside the plain"
    " ones.",
    "measure": "The measure that the study is judged by; default: the first.",
    "axis": "Of varied keys the one along the curves.",
}
