"""The shape that docs/architecture.md promises, computed from the source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import klda

SOURCE = Path(klda.__file__).parent
# A room imports only rooms above it: lazily or not, for types or not.
BESIDE = ["version", "errors", "checks", "cpus", "labels", "messages", "progress"]
ROOMS = [
    *BESIDE,
    "engine",
    "classifiers",
    "encoders",
    "data",
    "storage",
    "inspection",
    "undo",
    "export",
    "learner",
]
DOORS = ["cli", "server", "cluster"]  # what users meet; the command line opens the other two


def modules():
    return sorted(path for path in SOURCE.rglob("*.py"))


def name_of(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def nodes(path):
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path, package="klda"):
    """Yield the modules and names that a module imports from a package, wherever in it."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if is_in(alias.name, package))
        elif isinstance(node, ast.ImportFrom) and is_in(node.module or "", package):
            yield from ((node.module, alias.name) for alias in node.names)


def is_in(module, package):
    return module.split(".")[0] == package


def room_of(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def allowed(room):
    if room in DOORS:
        return {*ROOMS, room, *(DOORS if room == "cli" else [])}
    return set(ROOMS[: ROOMS.index(room) + 1])


def test_a_room_imports_only_rooms_above_it():
    for path in modules():
        room = room_of(name_of(path))
        if room in ("", "__main__"):
            continue  # klda itself hands out the public names of all rooms, when asked for them
        for module, imported in imports(path):
            target = room_of(module) or (imported if imported in [*ROOMS, *DOORS] else "")
            found = f"{name_of(path)} imports {module}.{imported}"
            assert not target or target in allowed(room), found


def test_no_module_imports_a_private_name_of_another():
    for path in modules():
        for module, imported in imports(path):
            private = imported.startswith("_") and not imported.startswith("__")
            assert not private, f"{name_of(path)} imports {module}.{imported}"


def import_graph():
    """Return the modules that each module imports, lazily and for types too."""
    known = {name_of(path): path for path in modules()}
    graph = {}
    for name, path in known.items():
        graph[name] = set()
        for module, imported in imports(path):
            full = f"{module}.{imported}"
            target = full if full in known else module
            if target in known and target != name:
                graph[name].add(target)
    return graph


def knots(graph):
    """Return the groups of modules that all import each other, directly or not."""
    within = {name: reachable(graph, name) for name in graph}
    tied = {frozenset(other for other in within[name] if name in within[other]) for name in graph}
    return [knot for knot in tied if len(knot) > 1]


def reachable(graph, start):
    found, left = set(), [start]
    while left:
        for target in graph[left.pop()] - found:
            found.add(target)
            left.append(target)
    return found


def test_modules_import_each_other_in_one_direction():
    """Who reads one module of a circle has to read them all."""
    assert knots(import_graph()) == []


def test_few_modules_stand_beside_the_rooms():
    beside = [path.stem for path in SOURCE.glob("*.py") if path.stem != "__init__"]
    assert set(beside) <= {*BESIDE, "__main__"}


def test_the_product_and_its_tests_import_nothing_of_the_laboratory():
    for path in [*modules(), *Path(__file__).parent.rglob("*.py")]:
        assert list(imports(path, "klda_bench")) == [], path
