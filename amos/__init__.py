"""AMOS: mapping tensor computations onto hardware intrinsics."""
