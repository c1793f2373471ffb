"""Lets `pip install .` build the model when it is missing; puts it and assets into the wheel."""

from pathlib import Path
from runpy import run_path
from typing import Any

from hatchling.builders.hooks.plugin.interface import (  # pyright: ignore[reportMissingImports]
    BuildHookInterface,
)


class ModelHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        model: Path = run_path(str(Path(__file__).with_name("build_model.py")))["ensure_model"]()
        if version != "editable":  # there sediment.py finds them beside itself
            learned = Path(__file__).with_name("ranker.json")
            for path in (model, learned):
                build_data["force_include"][str(path)] = f"sediment_models/{path.name}"
            assets = Path(__file__).parent.with_name("assets")
            build_data["force_include"][str(assets)] = "sediment_assets"
