"""Recipes as users give them: a JSON or YAML file, or ``preset:NAME[#k]``."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from harness.errors import ConfigError
from harness.recipes.facts import ModelFacts
from harness.recipes.presets import preset
from harness.recipes.recipe import Recipe

_PRESET = re.compile(r"preset:(?P<name>[^#]+)(#(?P<index>.*))?")


def read_recipe(path: Path) -> Recipe:
    """Reads one recipe from a JSON or YAML file (JSON is read as the YAML it is).

    Raises ConfigError naming the file, the line where the syntax breaks, or the field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError("there is no such recipe file", where=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the recipe: {error}", where=path) from error
    try:
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"not valid JSON or YAML: {error.problem}", where=f"{path}{line}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid JSON or YAML: {error}", where=path) from error
    if value is None:
        raise ConfigError("the recipe file is empty", where=path, hint="for the defaults, write: scheme: static")
    return Recipe.from_dict(value, where=str(path))


def resolve_recipe(text: str, facts: ModelFacts) -> Recipe:
    """A recipe from a command-line argument: a file's path, or ``preset:NAME[#k]``, the k-th (from 0) of a preset's
    list; without ``#k`` the first that quantizes.

    Raises ConfigError.
    """
    match = _PRESET.fullmatch(text)
    if not match:
        return read_recipe(Path(text))
    recipes = preset(match["name"], facts).seeds
    if match["index"] is None:
        return next(recipe for recipe in recipes if not recipe.is_float32)
    if not match["index"].isdecimal() or int(match["index"]) >= len(recipes):
        listed = "; ".join(f"#{index} {recipe.label}" for index, recipe in enumerate(recipes))
        raise ConfigError(
            f"preset {match['name']!r} has recipes #0 to #{len(recipes) - 1}, not #{match['index']}", hint=listed
        )
    return recipes[int(match["index"])]
