"""Networks inside onnxruntime: AMOS's kernels as its custom operators, in a library of their own."""
