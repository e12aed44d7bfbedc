"""Tries the images that `release.images` built, each in its own root.

    unshare --mount --net python -m release.image_check build/images [arm64]

Of the broker's image: its size above the base, the health check, the main job (produce, compact, erase, verify), and a compaction
of 200 MB, in turns with the broker of this checkout. Of the one with Spark: compose's master, worker and broker, `spark stats`,
and a topic that the cluster compacts. For another machine, which is emulated: size and main job of the
broker's alone. The network has nothing but its own loopback, where all ports are free.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml

from diamant import Broker
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from release.build import ROOT
from release.containers import Container, start_loopback
from release.images import BASE, MACHINE, Image, Store, images_for, named, size_of

MOST_ABOVE_BASE_MB = 90
SLOWER_AT_MOST = 1.5
TURNS = 3
RECORDS, KEYS, VALUE_BYTES, BATCH = 1_000_000, 100_000, 180, 1_000
"""A log of 200 MB."""
OUTSIDE = Path(sys.executable).with_name("diamant")
HEALTH = ("diamant", "status", "--ready", "--timeout", "5s")
READS_KERNELS = "from diamant.kernels import ARE_COMPILED; print(ARE_COMPILED)"


def expect(is_so: bool, what: str) -> None:
    """End the program unless something is so; say it if it is."""
    if not is_so:
        raise SystemExit(f"not so: {what}")
    print(what, flush=True)


class Place(NamedTuple):
    """A directory of this machine for the volumes and roots of containers."""

    path: Path

    def volume(self, name: str, uid: int) -> Path:
        """Make a directory that belongs to the image's user."""
        directory = self.path / name
        directory.mkdir()
        shutil.chown(directory, uid, uid)
        return directory


def check_main_job(image: Image, place: Place) -> None:
    """Start the image as it says, and forget a customer."""
    container = Container(image, place.path, "diamant")
    volumes = {path: place.volume(path.strip("/"), container.uid) for path in ("/data", "/keys")}
    with container.mounted(volumes):
        expect(container.run("python", "-c", READS_KERNELS) == "True\n", "ARE_COMPILED is True, as the image's user")
        expect(
            not any(shutil.which(name, path=str(image.root / "usr/bin")) for name in ("cc", "gcc", "ld")), "no compiler"
        )
        expect(not container.is_healthy(image.health), "not healthy before the start")
        with container.running(image.command, image.health):
            forget(container.run)
        expect((volumes["/data"] / ".kafka_cleanshutdown").exists(), "SIGTERM closes the logs")


def forget(run: Callable[..., str]) -> None:
    """Produce, compact, erase and verify. `run` takes the words of a command, and `stdin`, and returns what it prints."""
    run("diamant", "topic", "create", "users", "-p", "1", "-c", "cleanup.policy=compact")
    lines = "".join(f"customer-{number % 1000}:value {number}\n" for number in range(10_000))
    run("diamant", "produce", "users", "-K", ":", stdin=lines)
    report = json.loads(run("diamant", "compact", "users", "--json"))
    expect(report["removed"] == {"superseded": 9_000}, "compact removes 9,000 superseded records of 10,000")
    certificate = "/home/diamant/certificate.json"
    options = ("--key", "customer-42", "--reason", "request 17", "--now", "--confirm-groups-behind")
    run("diamant", "erase", "users", *options, "--certificate", certificate)
    run("/bin/sh", "-c", "diamant certificates --public-key > broker.pem")
    run("diamant", "verify", certificate, "--public-key", "broker.pem")
    expect(True, "erase and verify: the certificate is valid")


async def write_log(directory: Path) -> None:
    """Write a compacted topic, which is not cleaned by itself."""
    rng = random.Random(1)
    noise = rng.randbytes(VALUE_BYTES * BATCH + RECORDS // BATCH)
    properties = {"log.cleaner.enable": "false", "diamant.http.listen": ""}
    async with Broker(listen="127.0.0.1:0", data_dir=str(directory), properties=properties) as broker:
        await broker.create_topic("big", 1, compact=True)
        log = broker.node.topics.log("big", 0)
        now_ms = time.time_ns() // 1_000_000
        for number in range(RECORDS // BATCH):
            log.append_internal(
                build_batch(
                    [
                        Record(
                            one,
                            now_ms,
                            b"key-%012d" % rng.randrange(KEYS),
                            noise[number + one * VALUE_BYTES :][:VALUE_BYTES],
                        )
                        for one in range(BATCH)
                    ],
                    base_offset=0,
                )
            )


@contextmanager
def broker_outside(data: Path) -> Iterator[None]:
    """Run the broker of this checkout."""
    words = [OUTSIDE, "start", "--data", data, "--listen", "127.0.0.1:9092"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while subprocess.run([OUTSIDE, *HEALTH[1:]], stderr=subprocess.DEVNULL, check=False).returncode:
            time.sleep(0.1)
        yield
        process.terminate()


def compacting_took_s(report: str, began_s: float) -> float:
    """The seconds since a command was started whose report this is."""
    removed = json.loads(report)["removed"]["superseded"]
    if not RECORDS - KEYS <= removed < RECORDS:
        raise SystemExit(f"{removed:,} records removed of {RECORDS:,}, expected about {RECORDS - KEYS:,}")
    return time.monotonic() - began_s


def check_speed(image: Image, place: Place) -> None:
    """Compact the same log inside and outside, in turns."""
    written = place.path / "written"
    asyncio.run(write_log(written))
    size = size_of(written / "big-0")
    expect(size >= 200e6, f"a log of {size / 1e6:.0f} MB")
    command = ("compact", "big", "--json")
    took_s: dict[str, list[float]] = {"inside": [], "outside": []}
    for turn in range(TURNS):
        data = place.path / f"outside-{turn}"
        shutil.copytree(written, data)
        with broker_outside(data):
            began_s = time.monotonic()
            done = subprocess.run([OUTSIDE, *command], stdout=subprocess.PIPE, text=True, check=True)
            took_s["outside"].append(compacting_took_s(done.stdout, began_s))
        shutil.rmtree(data)
        container = Container(image, place.path, f"inside-{turn}")
        data = place.path / f"data-{turn}"
        shutil.copytree(written, data)
        for path in (data, *data.rglob("*")):
            shutil.chown(path, container.uid, container.uid)
        with container.mounted({"/data": data}), container.running(image.command, image.health):
            began_s = time.monotonic()
            took_s["inside"].append(compacting_took_s(container.run("diamant", *command), began_s))
        shutil.rmtree(data)
    shutil.rmtree(written)
    print({where: [round(one, 2) for one in turns] for where, turns in took_s.items()})
    inside, outside = min(took_s["inside"]), min(took_s["outside"])
    expect(inside <= SLOWER_AT_MOST * outside, f"compacted in {inside:.2f} s inside, {outside:.2f} s outside")


def check_cluster(image: Image, place: Place) -> None:
    """Start compose's services, and have Spark count and compact."""
    services = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
    containers = {name: Container(image, place.path, name) for name in services}
    uid = containers["broker"].uid
    volumes = {path: place.volume(f"spark-{path.strip('/')}", uid) for path in ("/data", "/keys", "/staging")}
    shared = {path: volumes[path] for path in ("/data", "/staging")}

    def running(name: str):
        service = services[name]
        health = service.get("healthcheck", {}).get("test", ["CMD", "true"])
        return containers[name].running(service["command"], health[1:], service.get("environment"))

    broker, worker = containers["broker"], containers["spark-worker"]
    with (
        broker.mounted(volumes),
        containers["spark-master"].mounted({}),
        worker.mounted(shared, ["/data"]),
        running("broker"),
        running("spark-master"),
        running("spark-worker"),
    ):
        while "Successfully registered with master" not in worker.told():
            time.sleep(0.1)
        broker.run("diamant", "topic", "create", "users", "-p", "1", "-c", "cleanup.policy=compact")
        lines = "".join(f"user-{number % 1000}:value {number}\n" for number in range(10_000))
        broker.run("diamant", "produce", "users", "-K", ":", stdin=lines)
        stats = (
            "diamant",
            "spark",
            "stats",
            "/data",
            "--topic",
            "users",
            "--master",
            "spark://spark-master:7077",
            "--json",
        )
        (row,) = map(json.loads, broker.run(*stats).splitlines())
        expect(row["records"] == 10_000, f"spark stats on the cluster: {row}")
        report = json.loads(broker.run("diamant", "compact", "users", "--engine", "spark", "--json"))
        (partition,) = report["partitions"]
        if partition["runners"] != ["spark"]:
            raise SystemExit(f"compacted by {partition['runners']}, expected Spark\n{broker.told()}")
        print(f"compacted by Spark: {report['removed']}")


def check(place: Path, machine: str = MACHINE) -> None:
    """Check the images; ends the program at the first fault."""
    start_loopback()
    store = Store(place)
    try:
        base = store.unpack(named(BASE, machine))
        images = {name: store.unpack(named(f"localhost/{name}", machine)) for name in images_for(machine)}
        print(store.run("images"))
        for name, image in images.items():
            print(
                f"{name}: {(image.size_bytes - base.size_bytes) / 1e6:.0f} MB above the base of {base.size_bytes / 1e6:.0f} MB"
            )
        above_mb = (images["diamant"].size_bytes - base.size_bytes) / 1e6
        expect(above_mb <= MOST_ABOVE_BASE_MB, f"the broker's image is {above_mb:.0f} MB above its base")
        with tempfile.TemporaryDirectory(dir=place) as directory:
            Path(directory).chmod(0o755)
            check_main_job(images["diamant"], Place(Path(directory)))
            if machine == MACHINE:
                check_speed(images["diamant"], Place(Path(directory)))
                check_cluster(images["diamant-spark"], Place(Path(directory)))
    finally:
        store.run("rm", "--all")


if __name__ == "__main__":
    check(Path(sys.argv[1]).absolute(), *sys.argv[2:])
