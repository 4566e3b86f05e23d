"""``amos fuse-check``."""

from __future__ import annotations

import json

import pytest

from amos.cli import main

GEMM = "y[i,j] += a[i,k] * b[k,j]"
SIZES = ["--extent", "i=4,j=8", "--extent", "k=16"]


def test_fusable_as_an_epilogue(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fuse-check", GEMM, "z[j,i] = y[i,j] then relu(acc + t[j])", *SIZES]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "behind: as the epilogue relu(acc + t[j]) and the output z[j, i]" in text
    assert main([*arguments, "--json", "--dtype", "y=s32"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["fusable"], report["place"], report["reasons"]) == (True, "behind", [])
    assert "then relu(acc + t[j])" in report["fused"]


def test_fusable_as_a_further_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse-check", GEMM, "z[i] max= y[i,j]", *SIZES]) == 0
    text = capsys.readouterr().out
    assert "and z[i] max= acc\n" in text
    assert "beside: as the further result z[i] max= acc; CUDA kernels then do not split" in text


def test_not_fusable_has_status_1_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse-check", GEMM, "z[i] += y[i,j] then acc * s[]", *SIZES]) == 0
    assert "beside: as the further result z[i] += acc then acc * s[]" in capsys.readouterr().out
    arguments = ["fuse-check", GEMM, "z[i] *= y[i,j] then acc * s[]", *SIZES]
    assert main(arguments) == 1
    text = capsys.readouterr().out
    assert "not fusable\n  - behind: the consumer sums over `j`" in text
    assert main([*arguments, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["fusable"], len(report["reasons"]), report["fused"]) == (False, 3, "")


def test_an_operator_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse-check", "gemm", "z[n,m] = out[m,n]"]) == 0
    assert "behind: as the output z[n, m]" in capsys.readouterr().out
    scaled = ["gemm", "z[n,m] = out[m,n] then acc * s[n]", "--dtype", "s=f16", "--dtype", "a=f16"]
    assert main(["fuse-check", *scaled, "--extent", "n=8,m=4"]) == 0
    text = capsys.readouterr().out
    assert all(each in text for each in ("m=4, n=8", "a: f16", "s: f16", "then acc * s[n]"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([GEMM, "z[i] = y[i", *SIZES], "never closed"),
        ([GEMM, "z[i,j] = y[i,j]", "--extent", "i=4"], "no extent given"),
        ([GEMM, "z[i,j] = y[i,j]", "--extent", "i"], "NAME=SIZE"),
        ([GEMM, "z[i,j] = y[i,j]", *SIZES, "--dtype", "u8"], "TENSOR=DTYPE"),
        ([GEMM, "z[i,j] = y[i,j]", *SIZES, "--extent", "jj=3"], "'jj' is in neither operator"),
        (
            [GEMM, "z[i,j] = y[i,j] then acc + bias[j]", *SIZES, "--dtype", "bais=f16"],
            "'bais' is in neither operator; they have y, a, b, z, bias; did you mean 'bias'?",
        ),
        (["conv2d", "z[n,k,p,q] = out[n,k,p,q]", "--extent", "strides=2"], "'strides'"),
        (["gemm", "z[n,m] = out[m,n] then acc * s[n]", "--dtype", "t=f16"], "for 't'"),
    ],
)
def test_what_cannot_be_read(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fuse-check", *arguments]) == 2
    assert message in capsys.readouterr().err
