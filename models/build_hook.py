"""Lets `pip install .` build the model when it is missing, and puts it into the wheel."""

from pathlib import Path
from runpy import run_path
from typing import Any

from hatchling.builders.hooks.plugin.interface import (  # pyright: ignore[reportMissingImports]
    BuildHookInterface,
)


class ModelHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        model: Path = run_path(str(Path(__file__).with_name("build_model.py")))["ensure_model"]()
        if version != "editable":  # there sediment.py finds the model beside itself
            learned = Path(__file__).with_name("ranker.json")
            for path in (model, learned):
                build_data["force_include"][str(path)] = f"sediment_models/{path.name}"
