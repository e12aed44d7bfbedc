"""Builds the kernels: Cython's Python into extension modules, one for all CPython from 3.11 on (abi3).

Where there is no compiler one comes from PyPI. Where any kernel cannot be compiled none is installed, and Diamant runs with their
plain twins.
DIAMANT_KERNELS=checked builds them with bounds checks and sanitizers; DIAMANT_KERNELS=none leaves them out.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

KERNELS = Path("diamant/kernels")
SHARED = "diamant.kernels.shared"
"""What all kernels need of Cython."""
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
    target = module.with_suffix(".pxd")
    text = "\n".join(lines) + "\n"
    if not target.exists() or target.read_text() != text:
        target.write_text(text)


def kernels() -> list[Extension]:
    """Return the extension modules; none where they are not wanted."""
    if VARIANT == "none" or not Path(sysconfig.get_path("include"), "Python.h").exists():
        return []
    from Cython.Build import cythonize

    for module in (KERNELS / "constants").glob("[!_]*.py"):
        write_constants(module)
    options = {
        "define_macros": ABI3,
        "py_limited_api": True,
        "include_dirs": [str(KERNELS)],
        "depends": [str(path) for path in [*KERNELS.glob("*.h"), *KERNELS.glob("**/*.pxd")]],
        "extra_compile_args": ["-O1", *CHECKED] if VARIANT == "checked" else ["-O3", "-fvisibility=hidden", "-g0"],
        "extra_link_args": CHECKED if VARIANT == "checked" else ["-s"] if sys.platform == "linux" else [],
    }
    modules = [
        Extension(f"diamant.kernels.{path.stem}", [str(path)], **options) for path in sorted(KERNELS.glob("[!_]*.py"))
    ]
    return cythonize(
        [*modules, Extension(SHARED, [], **options)],
        build_dir="build/kernels",
        shared_utility_qualified_name=SHARED,
        language_level=3,
        compiler_directives={
            "boundscheck": VARIANT == "checked",
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": False,
        },
    )


class Build(build_ext):
    """Compiles a kernel on each processor; all or none, for `diamant.kernels.ARE_COMPILED` knows nothing in between."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        try:
            super().run()
        except (CCompilerError, ExecError, PlatformError) as error:
            if VARIANT == "checked":
                raise
            self.warn(f"the kernels cannot be compiled, Diamant is installed without them: {error}")
            for extension in self.extensions:
                Path(self.build_lib, self.get_ext_filename(extension.name)).unlink(missing_ok=True)
            self.extensions = []


HAS_COMPILER = any(map(shutil.which, ("gcc", "clang", "cc")))
if not HAS_COMPILER:
    os.environ.setdefault("CC", f"{sys.executable} -m ziglang cc")

setup(
    # A compiler from PyPI, for the time of the build.
    setup_requires=[] if HAS_COMPILER else ["ziglang==0.15.2"],
    ext_modules=kernels(),
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
