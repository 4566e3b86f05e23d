"""What `bench_cpu.py` compares: one file a contender, and what they share."""
