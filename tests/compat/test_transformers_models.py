"""The recorded run of transformers' marked models: what it says holds together, and the page shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS: dict[str, dict[str, dict[str, Any]]] = json.loads(
    (ROOT / "compat" / "transformers_models.json").read_text(encoding="utf-8")
)
CLASSES = {name: each for classes in RESULTS.values() for name, each in classes.items()}

#: Their rotary embeddings are not what the kernels of their mark compute: the other way round, and with another layout.
DIFFERENT = {
    "NanoChatForCausalLM",
    "NanoChatModel",
    "OpenAIPrivacyFilterForTokenClassification",
    "OpenAIPrivacyFilterModel",
}


def test_kernels_change_no_output_that_their_marks_do_not_change() -> None:
    ran = {name: each for name, each in CLASSES.items() if "outcome" in each}
    assert len(ran) > 400
    assert {name for name, each in ran.items() if each["outcome"] != "same"} == DIFFERENT
    assert all(each["difference"] < 2e-5 for name, each in ran.items() if name not in DIFFERENT)
    assert all(each["after"] <= each.get("noise", 0) for each in ran.values())


def test_every_mark_of_a_model_got_a_kernel() -> None:
    for each in CLASSES.values():
        if "outcome" in each:
            assert sorted(each["kernelized"]) == each["marks"]
            assert "skipped" not in each


def test_what_was_not_run_has_a_reason() -> None:
    reasons = {each["failed"].split(":")[0] for each in CLASSES.values() if "outcome" not in each}
    assert reasons <= {
        "cannot be made tiny",
        "does not run tiny",
        "no marked layer",
        "takes too long",
        "cannot be imported",
    }


def test_the_page_has_the_table() -> None:
    code = "import json, transformers_models as t; print(t.table(json.loads(t.RESULTS.read_text(encoding='utf-8'))))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "compat")},
    )
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert done.stdout.strip() in page


def test_the_page_has_plain_words() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    for word in ("does not run tiny", "cannot be made tiny", "LookupError", "DIFFERENT"):
        assert word not in page
    assert "| its tiny copy does not run: the script has no values for its input vision_features |" in page
    assert "| the outputs with kernels differ by 0.003 of the largest value | `NanoChatForCausalLM` |" in page
