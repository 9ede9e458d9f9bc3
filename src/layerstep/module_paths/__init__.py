"""The models of a program, the paths of their modules, and the patterns that name several of them."""
