"""tools/plan.py on images that lie here: they are counted; a study's place may be called images."""

from PIL import Image

from helpers.plans import planned, row


def test_own_images_that_are_here_are_counted(capsys, tmp_path):
    """100 images without a held-out split, of which 1% is held out; a test split of 20."""
    for split, count in (("train", 100), ("test", 20)):
        (tmp_path / "own" / split / "a").mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (8, 8)).save(tmp_path / "own" / split / "a" / f"{i}.png")
    own = f"data.path={tmp_path}/own"
    record, lines = planned(capsys, "recipe=mpp", own)
    assert record["training_images"] == 99 and "of 99" in row(lines, "length")
    assert planned(capsys, "recipe=mpp", own, "epochs=256")[0]["steps"] == 198
    assert planned(capsys, "recipe=mpp", own, "images=1280", "epochs=50")[0]["steps"] == 500
    assert planned(capsys, "recipe=evaluate", own)[0]["images"] == 120


def test_a_study_may_call_a_place_images(capsys, tmp_path):
    """images= and epochs= are the tool's own for one recipe."""
    study = tmp_path / "study.yaml"
    study.write_text(
        "title: t\nplaces: [images]\nseeds: [0]\narms: {mpp: one}\nparts:\n  pretrain:\n"
        '    {tool: pretrain, options: {recipe: mpp, data.path: "{images}", optim.steps: 200}}\n'
    )
    record, _ = planned(capsys, f"recipe={study}", f"images={tmp_path}/not/here", "device=h100")
    assert record["tasks"] == 1 and record["images"] == 200 * 128
