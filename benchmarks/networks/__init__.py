"""Networks that ``bench_networks.py`` compares, as ONNX models of our own definition."""
