"""`examples/kernels/build.py` makes one repository of each kernel's two source folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_kernels import example_builder, load_example

NOARCH = ["torch-cpu", "torch-cuda", "torch-rocm", "torch-xpu"]


def _variants(hub: Path, name: str) -> list[str]:
    return sorted(path.name for path in (hub / "kernels-examples" / name / "v1" / "build").iterdir())


@pytest.mark.compiler
def test_compiled_and_noarch_builds_share_a_repository(example_hub: Path) -> None:
    assert sorted(path.name for path in (example_hub / "kernels-examples").iterdir()) == [
        "rms-norm",
        "rotary",
        "silu-and-mul",
    ]
    for name in ("rms-norm", "rotary", "silu-and-mul"):
        load_example(example_hub, name, "compiled-cpu")
        variants = _variants(example_hub, name)
        assert sorted(set(NOARCH) & set(variants)) == NOARCH
        assert any("-cpu-" in variant for variant in variants)


def test_without_a_compiler_the_noarch_builds_are_made_and_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert example_builder().main([str(tmp_path / "hub")]) == 0
    assert _variants(tmp_path / "hub", "rms-norm") == NOARCH
    told = capsys.readouterr()
    assert str(tmp_path / "hub/kernels-examples/rotary/v1/build/torch-cpu") in told.out.splitlines()
    assert "rms-norm for cpu was not compiled. Compiler not found: looked for no-such-compiler" in told.err


def test_noarch_only_leaves_the_compiled_builds_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert example_builder().main([str(tmp_path / "hub"), "--noarch-only"]) == 0
    assert _variants(tmp_path / "hub", "silu-and-mul") == NOARCH
    assert capsys.readouterr().err == ""


def test_a_build_that_fails_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken" / "noarch").mkdir(parents=True)
    (tmp_path / "broken" / "noarch" / "build.toml").write_text("[general]\nedition = 9\n")
    builder = example_builder()
    with pytest.raises(ValueError, match=r"`general\.edition` is 9; expected 5"):
        builder.build_examples(tmp_path / "hub", sources=tmp_path)
    (tmp_path / "hub").write_text("in the way")
    assert builder.main([str(tmp_path / "hub" / "below"), "--noarch-only"]) == 1
    assert "hub" in capsys.readouterr().err
