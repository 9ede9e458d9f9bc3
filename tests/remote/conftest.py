from attached_training import runtime_dir, soon, training

__all__ = ["runtime_dir", "soon", "training"]
