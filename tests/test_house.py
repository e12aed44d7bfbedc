"""Rules of the house that no tool checks: what documentation, packaging and tests promise each other."""

from __future__ import annotations

import ast
import graphlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_type_hints

import click
import pytest
import yaml
from packaging.requirements import Requirement

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.broker_table import BROKER_CONFIGS
from diamant.broker.config.group_table import GROUP_CONFIGS, LIMITS
from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.broker.config.virtual_topic_table import ROWS
from diamant.broker.launch.start import start
from diamant.broker.metrics.metric_table import METRICS
from release.reference.configuration import configuration_page
from release.reference.method_files import methods
from release.reference.metrics import metrics_page
from release.reference.pages import commands, help_text, reference_pages, routes
from tests import folder_map
from tests.effort import some

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
IMPORTED_AS = {"google-re2": "re2", "pyjwt": "jwt", "pyyaml": "yaml"}
LINKS = ("broker", "cleaner", "protocol", "storage")
NOT_OURS = {".git", ".venv", "data", "build", "dist"}
MADE = (".egg-info", "cache", "cache__", ".hypothesis")
PINNED = re.compile(r'[a-z0-9.-]+==[0-9][0-9a-z.]*(; python_version < "3\.14")?')
MAX_MODULES = 15
WITHOUT_EFFECT = ("regardless of this value", "Must be empty")
"""Words in the documentation of a configuration that is not read."""
ONE_IN = 8
"""Of the test modules a quick run parses one in so many."""
MIXED = ("diamant", "diamant/broker", "diamant/kernels", "diamant/protocol", "diamant/storage")
"""Folders with modules beside their folders."""
LATER = ("bz2", "hashlib", "lzma", "secrets", "shutil", "tempfile", "zipfile")
HEAVY = ("aiohttp", "jinja2", "jwt", "pandas", "pyarrow", "pyspark", "diamant.broker.security.sasl.sasl_listeners")


def text_files() -> Iterator[Path]:
    """Every text file of the repository that people write."""
    for directory, names, files in os.walk(ROOT):
        # Links to directories are listed, not followed.
        names[:] = [name for name in names if name not in NOT_OURS and not name.endswith(MADE)]
        for name in files:
            path = Path(directory, name)
            if path.suffix in {".py", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ""} and not path.is_symlink():
                yield path


@cache
def parsed(text: str) -> ast.Module:
    """Return a module's syntax, for all tests that look at it."""
    return ast.parse(text)


def syntax(module: Path, containing: str = "") -> ast.Module:
    """The syntax of a module; of an empty one if the text is nowhere in it, since parsing takes far longer than looking."""
    text = module.read_text()
    return parsed(text if containing in text else "")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def called(call: ast.Call) -> str:
    """The last name of what is called, or nothing."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


TEST_MODULES = sorted((ROOT / "tests").rglob("test_*.py"))
MARKDOWN = sorted(path for path in text_files() if path.suffix == ".md")


def shown(path: Path) -> str:
    """Return a path as the test's id."""
    return str(path.relative_to(ROOT))


def test_every_test_says_what_behaviour_it_is_about() -> None:
    """Each test function has a docstring."""
    silent = [
        f"{shown(module)}:{function.lineno}"
        for module in some(TEST_MODULES, every=ONE_IN)
        for function in functions(syntax(module))
        if function.name.startswith("test_") and not ast.get_docstring(function)
    ]
    assert silent == []


def test_no_test_sleeps() -> None:
    """Tests wait for a condition or move the clock; only a function named wait_... may sleep between two looks."""
    sleepers = [
        f"{shown(module)}:{node.lineno}"
        for module in sorted((ROOT / "tests").rglob("*.py"))
        for function in functions(syntax(module, containing="sleep"))
        if not function.name.startswith(("wait_", "_wait_"))
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and sleeps(node)
    ]
    assert sleepers == []


def sleeps(call: ast.Call) -> bool:
    """True if a call sleeps, rather than give way for one turn of the loop."""
    if called(call) != "sleep":  # to unparse is slow
        return False
    is_zero = [ast.unparse(argument) for argument in call.args] == ["0"]
    return not is_zero and ast.unparse(call.func) in ("time.sleep", "asyncio.sleep", "sleep")


def test_no_test_goes_missing_with_what_it_tests() -> None:
    """No test module uses `importorskip`: a module that cannot be imported any more must fail its tests, not leave them out."""
    skipping = [
        f"{shown(module)}:{node.lineno}"
        for module in TEST_MODULES
        for node in ast.walk(syntax(module, containing="importorskip"))
        if isinstance(node, ast.Call) and called(node).endswith("importorskip")
    ]
    assert skipping == []


def test_no_import_leads_back_to_its_module() -> None:
    """Modules are imported in several threads at once: in a circle, one could see half of what another has only begun."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "diamant").rglob("*.py")
    }
    imports = {name: {*imported_at_once(path.read_text())} & modules.keys() - {name} for name, path in modules.items()}
    assert sum(map(len, imports.values())) > len(modules)
    graphlib.TopologicalSorter(imports).prepare()


def imported_at_once(text: str) -> Iterator[str]:
    """Imports at the top level of a module: the statements that are not indented."""
    for module, names in re.findall(r"^from (\S+) import (\([^)]*\)|.*)", text, re.MULTILINE):
        yield from (module, *(f"{module}.{name}" for name in re.findall(r"\w+", names)))
    yield from re.findall(r"^import (\S+)", text, re.MULTILINE)


def test_no_file_names_the_machine_it_was_written_on() -> None:
    """Neither the path of this checkout nor the home directory appears in any file."""
    places = {str(ROOT), str(Path.home())} - {"/", "/root"}
    mentions = [
        f"{shown(path)}: {place}"
        for path in text_files()
        for place in places
        if place in path.read_text(errors="replace")
    ]
    assert mentions == []


def test_the_top_level_links_lead_into_the_package() -> None:
    """The four links are relative, so that they work wherever the repository lies."""
    assert {link: os.readlink(ROOT / link) for link in LINKS} == {link: f"diamant/{link}" for link in LINKS}


def test_the_map_of_the_folders_is_what_they_say() -> None:
    """ARCHITECTURE.md has a line for each folder, from its `__init__`, or its name below that line; `make docs` writes it."""
    assert folder_map.shown() == folder_map.folder_map()
    assert [folder.name for folder in folders() if not folder_map.purpose(folder).endswith(".")] == []


def folders() -> list[Path]:
    """Return all folders of the product."""
    return sorted(path.parent for path in (ROOT / "diamant").rglob("__init__.py"))


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    """It holds fifteen modules at most, and modules or folders, not both; the roots may have a few modules beside folders."""
    too_full, mixed = [], []
    for folder in folders():
        modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        if len(modules) > MAX_MODULES:
            too_full.append(f"{shown(folder)}: {len(modules)} modules")
        if modules and any(folder.glob("*/__init__.py")) and shown(folder) not in MIXED:
            mixed.append(shown(folder))
    assert (too_full, mixed) == ([], [])


PROGRAMS = [path for top in ("diamant", "tests", "bench", "examples") for path in sorted((ROOT / top).rglob("*.py"))]
IMPORTED_IN_TEXT = re.compile(r"from (diamant(?:\.\w+)+) import (\w+(?:, \w+)*)")
DOTTED = re.compile(r"\bdiamant\.(?:broker|cleaner|protocol|storage)\.[a-z][\w.]*")
NO_MODULE = (
    "diamant.cleaner.kafka.version",
    "diamant.cleaner.mode",
    "diamant.cleaner.nonsense",
    "diamant.cleaner.spark.",
)
"""Configurations, which are called like modules."""


@cache
def has_name(dotted: str) -> bool:
    """True if a dotted name is a module of ours, or a name that stands in the text of one."""
    place, rest = ROOT, dotted.rstrip(".").split(".")
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    if rest and (place / f"{rest[0]}.py").exists():
        text = (place / f"{rest.pop(0)}.py").read_text()
        return not rest or re.search(rf"\b{rest[0]}\b", text) is not None
    return not rest or (len(rest) == 1 and place != ROOT and rest[0] in (place / "__init__.py").read_text())


def test_names_of_modules_exist_in_text_too() -> None:
    """Programs of child processes, patched names, modules that must not be loaded: text, which no type checker reads."""
    missing = []
    for path in PROGRAMS:
        text = path.read_text()
        names = set(DOTTED.findall(text))
        names |= {f"{module}.{name}" for module, found in IMPORTED_IN_TEXT.findall(text) for name in found.split(", ")}
        missing += [
            f"{shown(path)}: {name}"
            for name in sorted(names)
            if not name.startswith(NO_MODULE) and name not in BROKER_CONFIGS and not has_name(name)
        ]
    assert missing == []


@pytest.mark.parametrize(("page", "most"), [("README.md", 150), ("ARCHITECTURE.md", 200)])
def test_the_first_pages_are_short(page: str, most: int) -> None:
    """They are read from top to bottom; what is more lies in docs/."""
    assert len((ROOT / page).read_text().splitlines()) <= most


def test_every_package_is_installed() -> None:
    """The list of packages in pyproject.toml is what lies under diamant/."""
    packages = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "diamant").rglob("__init__.py")}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == packages


def requirements(file: str) -> list[str]:
    """Return the lines of a requirements file that are not comments."""
    lines = (ROOT / file).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_every_file_that_is_no_module_is_installed() -> None:
    """Setuptools leaves out what it is not told of. What kernels are built of is not needed where they are installed."""
    data = PYPROJECT["tool"]["setuptools"]["package-data"]
    named = {
        str(path.relative_to(ROOT))
        for package, names in data.items()
        for name in names
        for path in ROOT.joinpath(*package.split(".")).glob(name)
    }
    files = {path.relative_to(ROOT) for path in (ROOT / "diamant").rglob("*") if path.is_file()}
    unshipped = (".py", ".pxd", ".pyi", ".h", ".so")
    assert named == {str(path) for path in files if path.suffix not in unshipped and "__pycache__" not in path.parts}


def test_requirements_are_exact() -> None:
    """Each line is a name and one version, in order, without addresses or options."""
    includes = ["-r requirements.txt", "-r requirements-spark.txt"]
    assert requirements("requirements-dev.txt")[:2] == includes
    named = (
        requirements("requirements.txt"),
        requirements("requirements-spark.txt"),
        requirements("requirements-dev.txt")[2:],
    )
    for lines in named:
        assert [line for line in lines if not PINNED.fullmatch(line)] == []
        assert lines == sorted(lines, key=lambda line: line.split("==")[0])


def test_each_dependency_is_pinned() -> None:
    """Each dependency of pyproject.toml has its exact version in requirements.txt."""
    needed = {re.split(r"[=<>~]", dependency)[0] for dependency in PYPROJECT["project"]["dependencies"]}
    assert needed <= {line.split("==")[0] for line in requirements("requirements.txt")}


def test_nothing_is_imported_that_an_installation_lacks() -> None:
    """Libraries of the tests are there wherever the suite runs, so no other test finds an import of one."""
    pinned = requirements("requirements.txt") + requirements("requirements-spark.txt")
    names = {re.split("[=.]", line)[0] for line in pinned}
    found = {
        name
        for path in (ROOT / "diamant").rglob("*.py")
        for names in re.findall(
            r"^ *(?:from ([a-z]\w*)[\w.]* import \S|import ([a-z]\w*)[\w.]*(?: as \w+)?$)", path.read_text(), re.M
        )
        for name in names
    }
    assert found - sys.stdlib_module_names - {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names} == {
        *("", "diamant"),
        *("pytest", "hypothesis"),  # of who uses the plugin, and the extra `schedules`
        "cython",  # of the build
        "compression",  # Python's from 3.14 on
    }


def test_the_demonstration_needs_little() -> None:
    """Two clients and what these need, in the versions that the suite runs with, and no Spark."""
    demo = requirements("requirements-demo.txt")
    assert set(demo) <= set(requirements("requirements-dev.txt"))
    assert "demo: $(DEMO_STAMP) ##" in (ROOT / "Makefile").read_text()
    imported = {
        name
        for path in (ROOT / "examples/forget_customer_42").glob("*.py")
        for name in re.findall(
            r"^ *(?:from|import) (aiokafka|confluent_kafka|kafka|pyarrow|pyspark)\b", path.read_text(), re.M
        )
    }
    assert imported == {"aiokafka", "confluent_kafka"}


def test_the_oldest_versions_that_are_tried_are_those_that_are_allowed() -> None:
    """requirements-lowest.txt has the lower bound of each dependency; the newest that is tried is within the range."""
    lowest = [re.sub(r">=([0-9.]+)[^;]*", r"==\1", needed) for needed in PYPROJECT["project"]["dependencies"]]
    assert sorted(lowest) == requirements("requirements-lowest.txt")
    newest = dict(line.partition(";")[0].split("==") for line in requirements("requirements.txt"))
    for needed in map(Requirement, PYPROJECT["project"]["dependencies"]):
        assert newest[needed.name] in needed.specifier


def test_every_ignored_rule_has_its_reason() -> None:
    """A lint rule is switched off with a comment that says why."""
    text = (ROOT / "pyproject.toml").read_text()
    ignored = re.search(r"^ignore = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert ignored
    assert [line for line in ignored[1].splitlines() if not re.fullmatch(r'    "[A-Z]+\d+",\s+# .{10,}', line)] == []


def test_the_configuration_page_is_current() -> None:
    """docs/reference/configuration.md is what the tables print: run `make docs` after changing them."""
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    assert page == configuration_page()
    for key in (*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()):
        assert f"| `{key.name}` |" in page
        assert key.documentation.rstrip().endswith((".", ")")), key.name


def test_the_reference_is_current() -> None:
    """Pages of docs/reference are what commands, routes and tables say of themselves: run `make docs` after changing them."""
    for name, text in reference_pages().items():
        assert (ROOT / "docs" / "reference" / name).read_text() == text


def test_the_methods_of_operations_are_current() -> None:
    """The methods of brokers and of Admin are those of the table of operations: run `make docs` after changing it."""
    for name, text in methods().items():
        assert (ROOT / "diamant" / name).read_text() == text


def test_the_reference_is_complete() -> None:
    """The reference has each command with each option, each path with each parameter, each configuration and metric."""
    pages = reference_pages()
    page = "\n".join(pages.values())
    sections = dict(re.findall(r"^## `(.+?)`\n(.*?)(?=^##? |\Z)", page, re.DOTALL | re.MULTILINE))
    shared = pages["commands.md"].split("\n## `", 1)[0]
    missing = []
    found = dict(commands())
    assert {"diamant start", "diamant compact", "diamant log whatif", "diamant clock advance"} <= set(found)
    for path, command in found.items():
        section = sections.get(path, "")
        for parameter in command.params:
            name = (
                parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name.strip("[].")
            )
            if not re.search(rf"(`|, |    .* |\[){re.escape(name)}\b", section + shared):
                missing.append(f"{path} {name}")
    for route in routes():
        section = sections.get(f"{route.method} {route.path}")
        if section is None:
            missing.append(f"{route.method} {route.path}")
        else:
            missing += [
                f"{route.path} {one.name}"
                for one in (*route.query, *route.fields)
                if f"| `{one.name}` |" not in section
            ]
    tables = f"{configuration_page()}{metrics_page()}{(ROOT / 'docs/how-to/compact-on-demand.md').read_text()}"
    missing += [name for name in (*TOPIC_CONFIGS, *BROKER_CONFIGS, *METRICS, *ROWS) if f"| `{name}" not in tables]
    assert missing == []
    assert set(sections) == set(found) | {f"{route.method} {route.path}" for route in routes()}


@pytest.mark.parametrize("path", dict(commands()))
def test_every_command_says_what_it_does(path: str) -> None:
    """The help has a sentence, the exit codes unless they are the usual ones, and one for each option; no code names."""
    command = dict(commands())[path]
    text = help_text(command)
    assert re.match(r"[A-Z].*\.$", text.strip().splitlines()[0]), text
    undocumented = [one.name for one in command.params if isinstance(one, click.Option) and not one.help]
    assert undocumented == []
    source = inspect.getsource(inspect.unwrap(command.callback)) if command.callback else ""
    if "EXIT_NOT_SO" in source:
        assert re.search(r"[Ee]xit code", text), f"{path} may end with 3 and does not say when"


def test_configurations_without_effect_say_so() -> None:
    """A setting that the broker does not read is documented so, and no other is."""
    code = "".join(path.read_text() for path in (ROOT / "diamant").rglob("*.py"))
    read = {*re.findall(r"(?<=config\.)\w+|(?<=self\.)\w+", code), *re.findall(r'"([a-z.]+)"', code)}
    of_groups = {name for key in GROUP_CONFIGS.values() for name in (*key.synonyms, *LIMITS.get(key.name, ()))}
    wrong = []
    for attribute in get_type_hints(BrokerConfig):
        key = BROKER_CONFIGS.get(attribute.replace("_", "."))
        # Read by names that are put together: the windows of quotas, and what groups may override, with its limits.
        if key is not None and "quota.window" not in key.name and key.name not in of_groups:
            is_read = not read.isdisjoint((attribute, key.name))
            if is_read == any(words in key.documentation for words in WITHOUT_EFFECT):
                wrong.append(key.name)
    assert wrong == []


@pytest.mark.parametrize("page", MARKDOWN, ids=shown)
def test_make_targets_that_pages_name_exist(page: Path) -> None:
    """Each `make x` of a page is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"(?:^ {4}|`)make((?: [a-z-]+)+)", page.read_text(), re.MULTILINE)
    assert {word for command in commands for word in command.split()} <= targets


def dockerfile(name: str = "Dockerfile") -> dict[str, list[str]]:
    """Instructions of a file in docker/ by their word, continued lines joined."""
    text = re.sub(r"\\\n", " ", (ROOT / "docker" / name).read_text())
    instructions: dict[str, list[str]] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word.isupper():
            instructions.setdefault(word, []).append(rest)
    return instructions


def test_the_image_is_made_of_what_is_here() -> None:
    """The Dockerfiles copy what .dockerignore lets through and what exists, onto the Python that is required."""
    images = dockerfile(), dockerfile("spark.Dockerfile")
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [
        copy.split()[:-1] for image in images for copy in image["COPY"] if not copy.startswith("--from=packages ")
    ]
    taken = {source for sources in copies for source in sources}
    for image in images:
        taken |= set(re.findall(r"--mount=type=bind,source=(\S+),target", " ".join(image["RUN"])))
        assert image["ARG"][0] == "PYTHON=python:3.11-slim-bookworm"
        stages = ["--platform=$BUILDPLATFORM ${PYTHON} AS build", "build AS packages"]
        assert image["FROM"] == [*stages, "--platform=$TARGETPLATFORM ${PYTHON}"]
    assert taken == let_through
    assert all((ROOT / source).exists() for source in taken)
    assert PYPROJECT["project"]["requires-python"] == ">=3.11"


def test_the_image_runs_as_nobody_and_reports_its_health() -> None:
    """The image has a user without rights and a health check, and the options that its pages use exist."""
    docker = dockerfile()
    assert docker["USER"] == ["10001:10001"]
    assert docker["EXPOSE"] == ["9092"]
    assert '["diamant", "status", "--ready", ' in docker["HEALTHCHECK"][0]
    used = set(re.findall(r'"(--[a-z-]+)"', " ".join(docker["ENTRYPOINT"] + docker["CMD"])))
    page = (ROOT / "docker" / "README.md").read_text()
    used |= set(re.findall(r"diamant(?: \\\n +)? (--[a-z]+)", page))
    assert used <= {option for parameter in start.params for option in parameter.opts}
    assert "docker build -f docker/Dockerfile -t diamant ." in page


@pytest.mark.slow
def test_an_idle_broker_has_nothing_heavy_in_memory() -> None:
    """Importing the broker and all its handlers imports no compiler, web server or Spark."""
    program = f"""
import importlib, pkgutil, sys
import diamant.broker.broker, diamant.broker.cli, diamant.broker.handlers as handlers
for module in pkgutil.walk_packages(handlers.__path__, handlers.__name__ + "."):
    importlib.import_module(module.name)
print(*[name for name in {HEAVY} if name in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stdout.split()) == (0, []), result.stderr


@pytest.mark.slow
def test_a_start_imports_nothing_of_the_standard_library_that_costs_and_waits() -> None:
    """`diamant start` imports archives, compressors and temporary files only when needed, which saves 2 MB and 5 ms."""
    program = f"""
import sys
import diamant.broker.launch.start, diamant.broker.running
print(*[name for name in {LATER} if name in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stdout.split()) == (0, []), result.stderr


def test_the_alert_rules_ask_for_metrics_that_there_are() -> None:
    """docs/reference/prometheus-rules.yaml is YAML of Prometheus' rules; expressions and texts use metrics and labels of ours."""
    groups = yaml.safe_load((ROOT / "docs" / "reference" / "prometheus-rules.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {group["name"] for group in groups} == {"diamant-erasure"}
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 6
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("warning", "critical")
        found = re.search(r"diamant_\w+", rule["expr"])
        assert found, rule["expr"]
        metric = METRICS[found[0]]
        matchers = set(re.findall(r"(\w+)=\"", rule["expr"]))
        shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        assert matchers | shown <= {*metric.labels, "instance"}, rule["alert"]
        assert "summary" in rule["annotations"]
    page = (ROOT / "docs" / "how-to" / "answer-an-erasure-request.md").read_text()
    assert [rule["alert"] for rule in rules if f"| `{rule['alert']}` |" not in page] == []
