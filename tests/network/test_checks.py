"""What is said of comparisons."""

from amos.network.checks import Check, summarize_checks


def test_kernels_that_are_right_take_one_line() -> None:
    passing = [Check("conv", "NumPy", 0.0, 0.0), Check("matmul", "NumPy", 1e-3, 4e-3)]
    failing, whole = Check("pool", "NumPy", 2.0, 1.0), Check("net", "onnxruntime", 1e-6, 1e-5)
    assert summarize_checks([*passing, failing, whole]) == [
        "2 kernels: at most 0.25 of the allowed difference from NumPy",
        str(failing),
        str(whole),
    ]
    assert summarize_checks([whole]) == [str(whole)]
