"""docs/study_files.md: every key of a study's file.

python docs/make_study_files.py > docs/study_files.md
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit.formatting import markdown_table
from ssl_vit.lab.studies import study_keys

HEAD = """# Study files

What a study is, and how one is run, is in the [compare](compare.md#studies); recipes/study/ has
examples. `tools/study.py recipe=FILE --check` names every mistake of a file, or shows its tasks and
what they cost. This page is generated from ssl_vit/lab/studies/study_keys.py:
`python docs/make_study_files.py > docs/study_files.md`.

## An example

[three_arms.yaml](examples/three_arms.yaml) compares two objectives with training from scratch on
images of your own, in folders by class:

```bash
python tools/study.py recipe=docs/examples/three_arms.yaml images=IMAGES --check
python tools/study.py recipe=docs/examples/three_arms.yaml images=IMAGES
python tools/report.py runs/three_arms format=latex,pdf
```

```yaml
{example}```
"""
EXAMPLE = Path(__file__).parent / "examples/three_arms.yaml"
TABLES = {
    "A study": study_keys.STUDY,
    "A part": study_keys.PART,
    "Its report": study_keys.REPORT,
}


def markdown() -> str:
    """The text of docs/study_files.md."""
    parts = [HEAD.format(example=EXAMPLE.read_text())]
    for title, keys in TABLES.items():
        rows = [(f"`{key}:`", meaning) for key, meaning in keys.items()]
        parts.append("\n".join([f"## {title}", "", markdown_table(("key", "meaning"), rows), ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    print(markdown(), end="")
