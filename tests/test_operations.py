"""The table of operations, and the texts beside it, agree with what they are about."""

import inspect

import pytest

import sediment
from sediment import OPERATIONS, cli, help_pages, tool_arguments, tools


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - sediment._OWN_RUNS.keys()))
def test_what_the_table_names_is_what_the_method_takes(name: str) -> None:
    given = {argument.name: None for argument in OPERATIONS[name].arguments}
    inspect.signature(OPERATIONS[name].run).bind(None, **given)


@pytest.mark.parametrize("name", sorted(sediment._OWN_RUNS))
def test_what_the_table_names_is_what_the_command_takes(name: str) -> None:
    given = {argument.name: None for argument in OPERATIONS[name].arguments}
    inspect.signature(sediment._OWN_RUNS[name]).bind(None, **given)


def test_every_command_has_a_page_of_help_and_every_page_a_command() -> None:
    assert help_pages().keys() == cli.commands.keys() - {"search"}


def test_agents_are_told_of_what_a_tool_takes_and_needs() -> None:
    hidden = {"store": {"created_at"}, "recall": {"source"}}
    for name, tool in tools().items():
        told = tool["inputSchema"]["properties"].keys()
        assert told == tool_arguments(name).keys() - hidden.get(name, set())
        needed = [word for word, one in tool_arguments(name).items() if one.is_required]
        assert tool["inputSchema"]["required"] == needed


def test_an_argument_that_is_not_given_is_left_to_the_method() -> None:
    for operation in OPERATIONS.values():
        parameters = inspect.signature(operation.run).parameters
        for argument in operation.arguments:
            known = parameters.get(argument.name)
            if known and argument.default is not None:
                assert known.default in (argument.default, inspect.Parameter.empty)


def test_no_row_of_a_memory_prints_control_characters() -> None:
    row = {"id": "a", "content": "\x1b[2J gone", "why": "confirmed"}
    answer = {"count": 1, "items": [row], "kept": [row]}
    assert "\x1b" not in "".join(sediment.render_pruned(answer))
