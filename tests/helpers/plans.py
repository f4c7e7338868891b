"""What the plan tool prints."""

import json

from ssl_vit.lab import plan_tool


def planned(capsys, *words):
    """What --json says, and the lines before it."""
    plan_tool.main([*words, "--json"])
    *lines, last = capsys.readouterr().out.splitlines()
    return json.loads(last), lines


def row(lines, name):
    return next(line for line in lines if line.startswith(f"{name} "))
