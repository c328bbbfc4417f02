"""Which server a command talks to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.where import Where, find, located
from headrace.errors import ConfigError, UrlRefused
from tests.cli.conftest import Ran


def write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_the_option_wins_over_the_variable_and_the_variable_over_the_file(nowhere: Path) -> None:
    write(nowhere, "headrace.toml", 'url = "redis://file"')
    env = {"HEADRACE_URL": "redis://variable"}
    assert find("redis://option", env, nowhere) == Where("redis://option", "--url")
    assert find(None, env, nowhere) == Where("redis://variable", "HEADRACE_URL")
    assert find(None, {"HEADRACE_URL": ""}, nowhere) == Where("redis://file", str(nowhere / "headrace.toml"))


def test_files_are_searched_upwards_and_a_project_without_our_table_is_passed_by(nowhere: Path) -> None:
    write(nowhere, "pyproject.toml", '[tool.headrace]\nurl = "redis://project"')
    write(nowhere / "a" / "b", "pyproject.toml", '[project]\nname = "x"')
    found = find(None, {}, nowhere / "a" / "b")
    assert found is not None
    assert found.url == "redis://project"
    assert "[tool.headrace]" in found.source


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("url = ", "cannot be read"),
        ('ulr = "redis://x"', "did you mean 'url'?"),
        ("url = 7", "write it in quotes"),
    ],
)
def test_a_bad_file_is_named_with_what_to_change(nowhere: Path, text: str, words: str) -> None:
    write(nowhere, "headrace.toml", text)
    with pytest.raises(ConfigError, match=r"headrace\.toml") as caught:
        find(None, {}, nowhere)
    assert words in str(caught.value)


def test_a_bad_url_names_the_place_it_came_from_and_never_itself() -> None:
    with pytest.raises(UrlRefused, match=r"^HEADRACE_URL: ") as caught:
        find(None, {"HEADRACE_URL": "redis://u:pa/ss@host"})
    assert "ss" not in str(caught.value).replace("password", "")
    assert "secret" not in repr(Where("redis://u:secret@host", "--url"))
    assert Where("redis://u:secret@host", "--url").masked == "redis://u:***@host:6379/0"


def test_looking_makes_no_server_but_adding_does(nowhere: Path, run_here: Callable[..., Ran]) -> None:
    run_here("groups", "orders").refused(2, "no server is known", "HEADRACE_URL", "headrace.toml")
    assert not (nowhere / ".headrace").exists()
    assert run_here("add", "orders", '{"id": 1}', "--json").json["first"]
    assert (nowhere / ".headrace").is_dir()
    assert run_here("groups", "orders", "--json").json["messages"] == 1


def test_the_embedded_server_is_held_while_it_is_used(nowhere: Path) -> None:
    with located(None, create=True) as where:
        assert where.url.startswith("unix://")
        with located(None) as again:
            assert again.url == where.url
