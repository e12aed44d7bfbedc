"""Builds the kernels: Cython's Python into extension modules, one for all CPython from 3.11 on (abi3).

It needs no headers of Python (`stable_abi.h`), and where no C compiler works one comes from PyPI, ziglang. A build whose kernels
cannot be compiled fails.
DIAMANT_KERNELS=none leaves them out: plain Python stands in for them, and features without such a twin say so.
DIAMANT_KERNELS=checked builds them with bounds checks and sanitizers. DIAMANT_TARGET=aarch64-linux-musl is a machine of ziglang's
to build them for, in place of this one.
"""

from __future__ import annotations

import ast
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

KERNELS = Path("diamant/kernels")
HEADERS = Path("build/python")
MODULE = "diamant.kernels.compiled"
"""All kernels: what Cython adds to a module takes ten times as long to compile as a kernel."""
VARIANT = os.environ.get("DIAMANT_KERNELS", "")
ABI3 = [("Py_LIMITED_API", "0x030B0000"), ("CYTHON_LIMITED_API", "1")]
CHECKED = [
    # Python's own flags have -fwrapv, which would hide sums that overflow.
    "-fno-wrapv",
    "-fsanitize=address,undefined",
    "-fno-omit-frame-pointer",
    "-fno-sanitize-recover=undefined",
    "-g",
]
ZIG = "ziglang==0.17.1"
ZIG_FLAGS = ["-fPIC", "-fwrapv", "-DNDEBUG", "-fno-sanitize=undefined"]


def refuse(reason: object) -> SystemExit:
    """Return the end of a build without kernels, which nobody asked for."""
    return SystemExit(
        f"Diamant's kernels cannot be compiled: {reason}\nInstall a wheel for this machine, or a C compiler (on Debian: apt-get "
        "install gcc libc6-dev). With DIAMANT_KERNELS=none Diamant is installed without kernels: it cleans 6 to 18 times slower, "
        "and has no Spark."
    )


def write_if_changed(path: Path, text: str) -> None:
    """Write a file, unless it has that text: what is made of it would be made again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def write_constants(module: Path) -> None:
    """Write the numbers of a Python module as constants of C, for kernels to cimport."""
    lines = ["from libc.stdint cimport int64_t, uint64_t", "", "cdef extern from *:", '    """']
    names = {}
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            value = eval(compile(ast.Expression(node.value), str(module), "eval"), {"__builtins__": {}}, names)
            if isinstance(value, int):
                names[name] = value
    kinds = {name: "int64" if value < 1 << 63 else "uint64" for name, value in names.items()}
    lines += [
        f"    #define DIAMANT_{module.stem}_{name} {kinds[name].upper()}_C({value})" for name, value in names.items()
    ]
    lines += ['    """'] + [f'    const {kinds[name]}_t {name} "DIAMANT_{module.stem}_{name}"' for name in names]
    write_if_changed(module.with_suffix(".pxd"), "\n".join(lines) + "\n")


def kernels() -> list[Extension]:
    """Return the extension module; none where it is not wanted. `Build` gives it its source."""
    if VARIANT == "none":
        return []
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise refuse(f"{sys.version.split(' (')[0]} has no stable ABI, a CPython with its global lock has.")
    return [
        Extension(
            MODULE,
            [],
            define_macros=ABI3,
            py_limited_api=True,
            include_dirs=[str(HEADERS), str(KERNELS)],
            depends=[str(path) for path in [*KERNELS.glob("*.h"), *KERNELS.glob("**/*.p*")]],
            extra_compile_args=["-O1", *CHECKED] if VARIANT == "checked" else ["-O2", "-fvisibility=hidden", "-g0"],
            extra_link_args=CHECKED if VARIANT == "checked" else ["-s"] if sys.platform == "linux" else [],
        )
    ]


def translate(module: Extension) -> None:
    """Write the kernels as C, and give the module that source."""
    from Cython.Build import cythonize

    for constants in (KERNELS / "constants").glob("[!_]*.py"):
        write_constants(constants)
    HEADERS.mkdir(parents=True, exist_ok=True)
    for name in ("Python", "compile", "frameobject", "pythread", "structmember", "traceback"):
        shutil.copy(KERNELS / "stable_abi.h", HEADERS / f"{name}.h")
    names = sorted(path.stem for path in KERNELS.glob("[!_]*.py"))
    source = Path("build", "kernels", "compiled.pyx")
    source.parent.mkdir(parents=True, exist_ok=True)
    write_if_changed(source, "".join(f'include "{name}.py"\n' for name in names) + f"KERNELS = {tuple(names)}\n")
    module.sources = [str(source)]
    [translated] = cythonize(
        [module],
        include_path=[".", str(KERNELS)],
        language_level=3,
        compiler_directives={
            "binding": False,
            "boundscheck": VARIANT == "checked",
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": False,
        },
    )
    module.sources = translated.sources


def works(compiler: str) -> bool:
    """Return whether a compiler links a module: a gcc without the headers of the C library does not."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place, "module.c")
        source.write_text("#include <stdlib.h>\nvoid *module(void) { return malloc(1); }\n")
        command = [*compiler.split(), "-shared", "-fPIC", source, "-o", source.with_suffix(".so")]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


@cache
def needs_zig() -> bool:
    """Return whether there is no compiler here for what is wanted. If there is, it is the one that setuptools takes."""
    if VARIANT == "none" or "CC" in os.environ:
        return False
    if "DIAMANT_TARGET" in os.environ:
        return True
    usual = sysconfig.get_config_var("CC") or "cc"
    found = next(filter(works, (usual, "cc", "gcc", "clang")), None)
    if found is not None and found != usual:
        os.environ["CC"] = found
    return found is None and sys.platform == "linux"


def zig() -> list[str]:
    """Return the words that start ziglang's C compiler, for any processor of its kind: by itself it takes this one's kind."""
    is_musl = "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "")
    here = f"{platform.machine()}-linux-{'musl' if is_musl else 'gnu'}"
    return [sys.executable, "-m", "ziglang", "cc", "-target", os.environ.get("DIAMANT_TARGET", here), *ZIG_FLAGS]


class Build(build_ext):
    """Compiles the kernels."""

    def build_extensions(self) -> None:
        if needs_zig():
            self.compiler.set_executables(compiler_so=zig(), linker_so=[*zig(), "-shared"])
            # There may be no home directory.
            os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(Path("build/zig").absolute()))
        for module in self.extensions:
            translate(module)
        super().build_extensions()

    def run(self) -> None:
        try:
            super().run()
        except (CCompilerError, ExecError, PlatformError) as error:
            raise refuse(error) from None


modules = kernels()
setup(
    # A compiler from PyPI, for the time of the build.
    setup_requires=[ZIG] if needs_zig() else [],
    ext_modules=modules,
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if modules else {},
)
