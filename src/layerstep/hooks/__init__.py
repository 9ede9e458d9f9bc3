"""What is put on modules, here and nowhere else: forward hooks, and what keeps fused layers fused."""
