"""The table of operations, and the texts beside it, agree with what they are about."""

import inspect
from collections.abc import Iterator

import click
import pytest

import sediment
import sediment_ext.http
import sediment_ext.upkeep
from sediment import OPERATIONS, Argument, Operation, cli, tool_arguments, tools
from sediment_ext.help_pages import help_pages


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


def declared() -> Iterator[tuple[Operation, Argument]]:
    for operation in OPERATIONS.values():
        for argument in operation.arguments:
            yield operation, argument


def test_the_shell_has_the_methods_defaults_and_the_tables_limits() -> None:
    for operation, argument in declared():
        known = getattr(operation.method or operation.run, "__kwdefaults__", None) or {}
        command = cli.commands[operation.name]
        params = command.get_params(click.Context(command))
        param = next(each for each in params if each.name == argument.name)
        if argument.default is not None and argument.name in known:
            assert argument.default == known[argument.name]
        if argument.default is not None:
            assert param.default == argument.default
        if isinstance(param.type, click.IntRange):
            limits = {"minimum": param.type.min, "maximum": param.type.max}
            assert argument.kind.limits == limits


def test_tools_have_the_tables_defaults_and_name_its_limits() -> None:
    for name, tool in tools().items():
        for word, schema in tool["inputSchema"]["properties"].items():
            argument = tool_arguments(name)[word]
            assert schema.get("default") == argument.default
            assert schema["type"] == argument.kind.schema["type"]
            if word == "limit":
                assert (
                    f"1 to {sediment.LIMIT_MAX} (default {argument.default})"
                    in schema["description"]
                )


def test_http_has_the_tables_defaults_and_limits() -> None:
    paths = sediment_ext.http.openapi().body["paths"]
    for route in sediment_ext.http.ROUTES:
        described = paths[route.path][route.method.lower()]
        schemas = {each["name"]: each["schema"] for each in described["parameters"]}
        body = described.get("requestBody", {}).get("content", {}).get("application/json", {})
        schemas |= body.get("schema", {}).get("properties", {})
        for name, argument in route.arguments.items():
            wanted = {} if argument.default is None else {"default": argument.default}
            wanted |= argument.kind.limits
            if name != route.named or "{id}" not in route.path:
                assert wanted.items() <= schemas[name].items(), (route, name)


def test_no_row_of_a_memory_prints_control_characters() -> None:
    row = {"id": "a", "content": "\x1b[2J gone", "why": "confirmed"}
    answer = {"count": 1, "items": [row], "kept": [row]}
    assert "\x1b" not in "".join(sediment_ext.upkeep.render_pruned(answer))
