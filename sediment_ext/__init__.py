"""What connects the memory to the world: one idea a file, loaded when it is used.

Each file imports the core as `import sediment as core` and uses its public names. The core reaches
them through `sediment.extension` alone.
"""
