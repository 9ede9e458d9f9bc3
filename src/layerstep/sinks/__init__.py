"""Trackers that get what a session records: TensorBoard, MLflow, Weights & Biases."""
