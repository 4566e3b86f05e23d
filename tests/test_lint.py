"""Every rule that ruff is configured with finds what it is there for."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SELECTED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"][
    "lint"
]["select"]

# A piece of code for each entry of the configuration, which it must object to.
BAD = {
    "E": "x = not 1 in [2]\n",
    "W": "x = 1 \n",
    "F": "import os\n",
    "I": "import sys\nimport os\n\nprint(os, sys)\n",
    "UP": "from typing import List\n\nx: List[int] = []\n",
    "B": "def f(x=[]):\n    return x\n",
    "C4": "x = list([i for i in range(3)])\n",
    "SIM": "def f(a):\n    if a:\n        return True\n    return False\n",
    "RET": "def f(a):\n    if a:\n        return 1\n    else:\n        return 2\n",
    "PIE": "class A:\n    x = 1\n    pass\n",
    "D1": "def public():\n    return 1\n",
    "TID252": "from . import something\n",
    "T20": "print(1)\n",
    "S102": "exec('1')\n",
    "S307": "x = eval(input())\n",
    "NPY002": "import numpy as np\n\nx = np.random.rand(3)\n",
    "RUF100": "x = 1  # noqa: E501\n",
}


def test_every_rule_has_its_example() -> None:
    assert set(SELECTED) == set(BAD)


@pytest.mark.parametrize("rule", sorted(BAD))
def test_rule_is_alive(rule: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--output-format", "json", "--no-cache"]
    done = subprocess.run(
        [*command, "--stdin-filename", "amos/example.py", "-"],
        input=BAD[rule],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    codes = [problem["code"] for problem in json.loads(done.stdout)]
    assert any(code.startswith(rule) for code in codes), codes
