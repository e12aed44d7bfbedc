"""`action.yml` and the workflows: their steps as plain commands, on loopback. `make check` has zizmor look at them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from diamant.version import __version__
from tests.building import PATH_WITH_GO
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
EXPRESSION = re.compile(r"\$\{\{ (.+?) \}\}")
MINOR = __version__.rpartition(".")[0]
LOOPBACK = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}


def step_of(workflow: str, job: str, name: str) -> dict[str, Any]:
    """Return a step of a workflow."""
    (found,) = [step for step in WORKFLOWS[workflow]["jobs"][job]["steps"] if step.get("name") == name]
    return dict(found)


class Done(NamedTuple):
    """The end of a step."""

    code: int
    output: str


class Runner:
    """Runs the steps of one job: their variables, outputs and PATH go from step to step by files, as on a real runner."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.files = {name: place / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH")}
        for file in self.files.values():
            file.touch()
        self.outputs: dict[str, str] = {}

    @property
    def started(self) -> Path:
        """What the broker said when it was ready."""
        return self.place / "diamant" / "started.json"

    @property
    def broker(self) -> int:
        """The broker's process."""
        return int(json.loads(self.started.read_text())["pid"])

    def variables(self) -> dict[str, str]:
        """Return the environment of the next step."""
        path = [*reversed(self.files["GITHUB_PATH"].read_text().splitlines()), os.environ["PATH"]]
        exported = dict(line.split("=", 1) for line in self.files["GITHUB_ENV"].read_text().splitlines())
        own = {"PATH": os.pathsep.join(path), "HOME": str(self.place), "RUNNER_TEMP": str(self.place)}
        return own | {name: str(file) for name, file in self.files.items()} | exported

    def run(self, step: dict[str, Any], context: dict[str, str], place: Path = ROOT, **variables: str) -> Done:
        """Run one step with `bash`; an expression that is not in `context` is a KeyError."""
        given = {
            name: EXPRESSION.sub(lambda found: context[found[1]], value) for name, value in step.get("env", {}).items()
        }
        assert not EXPRESSION.search(step["run"]), "what users give is passed by the environment"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=place, env=self.variables() | given | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False, timeout=6000,
        )  # fmt: skip
        return Done(done.returncode, done.stdout)

    def use(self, *, install: bool = False, **inputs: str) -> Done:
        """Use the action; without `install` the Diamant of this environment."""
        context = {"github.action_path": str(ROOT)}
        for name, declared in ACTION["inputs"].items():
            default = EXPRESSION.sub(lambda found: context[found[1]], declared["default"])
            context[f"inputs.{name}"] = inputs.pop(name, default)
        assert not inputs
        output = ""
        for step in ACTION["runs"]["steps"]:
            is_stop = context["inputs.mode"] == "stop"
            assert step["if"] in ("inputs.mode == 'stop'", "inputs.mode != 'stop'")
            if ("==" in step["if"]) is not is_stop:
                continue
            if step["name"] == "Install Diamant" and not install:
                self.link_diamant()
                continue
            done = self.run(step, context)
            output += done.output
            if done.code:
                return Done(done.code, output)
        written = dict(line.split("=", 1) for line in self.files["GITHUB_OUTPUT"].read_text().splitlines())
        for name, output_of in ACTION["outputs"].items():
            assert output_of["value"] == f"${{{{ steps.start.outputs.{name} }}}}"
        assert {*written} == ({*ACTION["outputs"]} if written else set())
        self.outputs = written
        return Done(0, output)

    def link_diamant(self) -> None:
        """What the first step installs."""
        programs = self.place / "diamant" / "bin"
        programs.mkdir(parents=True)
        for name in ("diamant", "python"):
            programs.joinpath(name).symlink_to(Path(sys.executable).with_name(name))
        self.files["GITHUB_PATH"].write_text(f"{programs}\n")


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    """A runner, which ends what is left of the job."""
    found = Runner(tmp_path)
    yield found
    if found.started.exists() and is_running(found.broker):
        os.kill(found.broker, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """True for a process that is more than a zombie."""
    try:
        return "\nState:\tZ" not in Path("/proc", str(pid), "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_the_action_starts_a_broker_for_the_next_steps_and_stops_it(runner: Runner) -> None:
    """The action's addresses are outputs and variables, its command is on PATH, and the stop shows its log."""
    assert runner.use(**LOOPBACK, config="num.partitions=3\n").code == 0
    exported = runner.variables()
    assert (
        exported["KAFKA_BOOTSTRAP_SERVERS"]
        == exported["DIAMANT_BOOTSTRAP_SERVERS"]
        == runner.outputs["bootstrap-servers"]
    )
    assert exported["DIAMANT_HTTP_URL"] == runner.outputs["http-url"]
    assert exported["DIAMANT_DATA"] == runner.outputs["data"]
    used = runner.run(step_of("ci", "action", "Use the broker"), {})
    assert used.code == 0, used.output
    assert "hello" in used.output
    assert '"partition": 2' in used.output
    broker = runner.broker
    stopped = runner.use(mode="stop")
    assert stopped.code == 0, stopped.output
    assert "INFO" in stopped.output
    assert not is_running(broker)
    assert runner.use(mode="stop") == Done(0, "no broker was started\n")


@pytest.mark.slow
def test_a_broker_that_cannot_start_ends_the_job_with_its_reason(runner: Runner) -> None:
    """The reason is an error of the job, which the host shows beside the workflow."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        code, output = runner.use(**LOOPBACK | {"listen": address})
    assert code == 1
    assert re.search(rf"^::error title=Diamant::the broker did not start: .*{address}", output, re.MULTILINE)
    assert runner.use(mode="stop") == Done(0, "no broker was started\n")


@pytest.mark.slow
def test_a_broker_that_has_ended_before_its_stop_is_an_error(runner: Runner) -> None:
    """A broker that ended early did not live as long as the tests that it was for."""
    assert runner.use(**LOOPBACK).code == 0
    os.kill(runner.broker, signal.SIGKILL)
    asyncio.run(wait_until(lambda: not is_running(runner.broker)))
    code, output = runner.use(mode="stop")
    assert code == 1
    assert "::error title=Diamant::the broker had ended before: " in output


@pytest.mark.long
def test_the_action_installs_its_own_sources(runner: Runner) -> None:
    """The action installs into an environment of its own, of which the next steps see the command alone."""
    copied = runner.place / "sources"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    copied.mkdir()
    subprocess.run(["xargs", "-0", "cp", "--parents", "-Pt", copied], cwd=ROOT, input=files, check=True, timeout=60)
    code, output = runner.use(**LOOPBACK, package=str(copied), python=sys.executable, install=True)
    assert code == 0, output
    asked = {"run": "diamant --version --json; command -v python3"}
    facts, python = runner.run(asked, {}).output.splitlines()
    assert json.loads(facts)["version"] == __version__
    assert str(runner.place) not in python
    assert runner.use(mode="stop").code == 0


@pytest.mark.parametrize(
    ("tag", "date", "told"),
    [
        (f"v{__version__}", "2026-12-01", ""),
        (f"v{__version__}", "not released yet", f"::error::CHANGELOG.md has no date for {__version__}\n"),
        ("v9.9.9", "2026-12-01", f"::error::the tag is v9.9.9, the version {__version__}\n"),
    ],
    ids=["released", "no date", "another version"],
)
def test_a_release_is_of_its_tag_and_has_a_date(tmp_path: Path, tag: str, date: str, told: str) -> None:
    """A release whose tag or date is wrong ends before anything is built."""
    (tmp_path / "diamant").mkdir()
    shutil.copy(ROOT / "diamant" / "version.py", tmp_path / "diamant")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changes\n\n## {__version__} ({date})\n")
    step = step_of("release", "files", "Compare the tag with the version")
    step["run"] = f"cd {tmp_path}\n{step['run']}"
    assert Runner(tmp_path).run(step, {}, GITHUB_REF_NAME=tag) == Done(bool(told), told)


def test_workflows_have_no_more_rights_than_they_say() -> None:
    """Workflows have no rights by default and a time limit for each job; they name actions by the id of a commit, with the
    version beside it.
    """
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow = WORKFLOWS[path.stem]
        assert workflow["permissions"] == {}
        assert all(job["timeout-minutes"] <= 60 for job in workflow["jobs"].values())
        used = re.findall(r"uses: (\S+) # (\S+)", path.read_text())
        assert used
        for action, version in used:
            assert action == "./" or re.fullmatch(r"[\w/-]+@[0-9a-f]{40} v\d+\.\d+\.\d+", f"{action} {version}")


def test_the_guide_knows_the_actions_inputs_and_outputs() -> None:
    """The guide's tables name all inputs and outputs, and its example no other."""
    guide = (ROOT / "docs/how-to/ci.md").read_text()
    listed = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \|", guide, re.MULTILINE)
    assert {name for names in listed for name in re.findall(r"[\w-]+", names)} == {
        *ACTION["inputs"],
        *ACTION["outputs"],
    }
    (example, *_) = re.findall(r"^```yaml\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    steps = yaml.safe_load(example)["jobs"]["tests"]["steps"]
    uses = [step.get("with", {}) for step in steps if "diamant@" in step.get("uses", "")]
    assert [{*given} for given in uses] == [{"config"}, {"mode"}]
    assert f"diamant@v{MINOR}." in example


@pytest.mark.slow
def test_a_devcontainer_starts_its_broker(runner: Runner) -> None:
    """The devcontainer's command is that of the guide, here on a free port. It ends, the broker does not."""
    runner.link_diamant()
    guide = (ROOT / "docs/how-to/ci.md").read_text()
    (described,) = re.findall(r"^```json\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    command = str(json.loads(described)["postStartCommand"]).replace("/var/tmp/diamant", f"{runner.place}/data")
    free = "diamant start --listen 127.0.0.1:0 --set diamant.http.listen=127.0.0.1:0"
    command = command.replace("diamant start", f"{free} --ready-file {runner.started}").replace("sleep 1", "true")
    assert runner.run({"run": command}, {}).code == 0
    asyncio.run(wait_until(runner.started.exists))
    assert is_running(runner.broker)


@pytest.mark.long
def test_the_class_for_testcontainers_compiles(tmp_path: Path) -> None:
    """The class compiles with its test, which is skipped where there is no Docker."""
    if shutil.which("mvn") is None:
        pytest.skip("needs Maven")
    project = shutil.copytree(ROOT / "examples" / "testcontainers", tmp_path / "project")
    done = subprocess.run(
        ["mvn", "-q", "-B", "test-compile"], cwd=project, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode and "COMPILATION ERROR" not in done.stdout:
        pytest.skip(f"its libraries cannot be had: {done.stdout.partition(chr(10))[0]}")
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_the_files_of_a_release_are_built_listed_and_summed_up(tmp_path: Path) -> None:
    """The workflow's commands run in a clone. The list has the version, and all packages that requirements.txt pins."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True, timeout=60)
    job = WORKFLOWS["release"]["jobs"]["files"]["steps"]
    by_name = {step["name"]: step for step in job if "run" in step}
    for name in ("Build and check wheels and the source distribution", "List what is in an installation", "Sum up"):
        done = Runner(tmp_path).run(by_name[name], {}, clone, MAKEFLAGS="")
        assert done.code == 0, done.output
    bill = json.loads((clone / f"dist/diamant_broker-{__version__}.cdx.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", __version__)
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    listed = {re.sub(r"[-_.]+", "-", part["name"]).lower() for part in bill["components"]}
    assert listed == {*pinned}
    summed = (clone / "dist/SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in summed} == {path.name for path in (clone / "dist").iterdir()} - {
        "SHA256SUMS"
    }
    assert sum(line.endswith(".whl") for line in summed) == 4


@pytest.mark.long
def test_actionlint_finds_nothing_in_the_workflows(tmp_path: Path) -> None:
    """The tool actionlint comes by the proxy of Go's modules."""
    go = shutil.which("go", path=PATH_WITH_GO)
    if go is None:
        pytest.skip("needs Go")
    wanted = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
    subprocess.run([go, "install", wanted], env=os.environ | {"GOBIN": str(tmp_path)}, check=True, timeout=250)
    done = subprocess.run([tmp_path / "actionlint"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
