"""Text for people, and the commands that start tools."""

import os
import sys
from pathlib import Path

import pytest

from ssl_vit import formatting


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (formatting.format_bytes, 0, "0 B"),
        (formatting.format_bytes, 999, "999 B"),
        (formatting.format_bytes, 1000, "0.977 KiB"),
        (formatting.format_bytes, 14.2 * 2**20, "14.2 MiB"),
        (formatting.format_bytes, 3 * 2**40, "3 TiB"),
        (formatting.format_bytes, 5 * 2**50, "5.12e+03 TiB"),
        # said "1e+03 thousand" and "1e+03 KiB"
        (formatting.rounded_count, 999_499, "999 thousand"),
        (formatting.rounded_count, 999_600, "1 million"),
        (formatting.format_bytes, 999.4 * 1024, "999 KiB"),
        (formatting.format_bytes, 999.7 * 1024, "0.976 MiB"),
    ],
)
def test_amounts_are_told_in_the_unit_that_fits(form, value: float, text: str) -> None:
    assert form(value) == text


def test_one_image_is_no_plural() -> None:
    texts = [formatting.format_count(count, "images without labels") for count in (0, 1, 2, 1000)]
    assert texts[:2] == ["0 images without labels", "1 image without labels"]
    assert texts[2:] == ["2 images without labels", "1,000 images without labels"]
    assert formatting.format_count(1, "classes") == "1 class"


def test_weights_are_said_to_lie_on_several_machines() -> None:
    facts = {"strategy": "ZeRO-2", "deepspeed": "0.19.8", "machines": 2}
    assert formatting.sharding_text(facts) == "ZeRO-2 (DeepSpeed 0.19.8, 2 machines)"
    assert formatting.sharding_text({"strategy": "DDP", "machines": 1}) == "DDP"


def test_an_installed_package_starts_its_tools_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "mine")
    (path,) = formatting.tool_command("plan")
    assert path.endswith("tools/plan.py")
    assert formatting.process_environment()["PYTHONPATH"] == f"{formatting.ROOT}{os.pathsep}mine"
    monkeypatch.setattr(formatting, "INSTALLED", True)
    assert formatting.tool_command("plan") == ["-m", "ssl_vit", "plan"]
    assert formatting.process_environment()["PYTHONPATH"] == "mine"


def test_a_printed_command_names_the_program_as_the_users_shell_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bin_folder = tmp_path / "env" / "bin"
    bin_folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(bin_folder / "python"))
    monkeypatch.setenv("PATH", "/usr/bin")
    words = ("plan", "recipe=a b")
    (path,) = formatting.tool_command("plan")
    no_program = f"{bin_folder}/python {path} 'recipe=a b'"
    assert formatting.typed_command(*words) == no_program
    (bin_folder / "ssl-vit").write_text("#!/bin/sh")
    (bin_folder / "ssl-vit").chmod(0o755)
    assert formatting.typed_command(*words) == f"{bin_folder}/ssl-vit plan 'recipe=a b'"
    monkeypatch.chdir(tmp_path)
    assert formatting.typed_command(*words) == "env/bin/ssl-vit plan 'recipe=a b'"
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin")
    assert formatting.typed_command(*words) == "ssl-vit plan 'recipe=a b'"
