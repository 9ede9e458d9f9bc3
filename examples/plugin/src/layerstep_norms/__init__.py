"""A plugin for layerstep. Each entry point in `pyproject.toml` names a module; importing it registers."""
