"""One memory on many machines: through a folder, a git remote or a hub."""
