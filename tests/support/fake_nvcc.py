"""A compiler that answers as nvcc does, and makes libraries for the fake driver.

Run as ``python fake_nvcc.py HEADERS ARCHITECTURES ARGUMENTS…`` with nvcc's arguments;
:func:`tests.support.fake_cuda.fake_nvcc` makes a command of that. It imports nothing of
its package. Each text is compiled once in a run of the tests, whose cache it keeps it in.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["main"]

_KERNEL = re.compile(r"__launch_bounds__\((\d+)(?:, \d+)?\)\s*(\w+)\((.*?)\)\s*\{", re.DOTALL)
_DYNAMIC = "extern __shared__ __align__(128) unsigned char shared_memory[];"
#: Most shared memory of a block on any architecture.
_MOST = 227 * 1024
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-w",
    "-fPIC",
    "-shared",
    "-fno-gnu-unique",
    "-ffp-contract=off",
    "-fvisibility=hidden",
)


def main(headers: str, architectures: str, *arguments: str) -> int:
    """What nvcc does with its arguments."""
    if "--version" in arguments:
        sys.stdout.write("Cuda compilation tools, release 12.9, V12.9.0 (a fake)\n")
        return 0
    if "--list-gpu-code" in arguments:
        sys.stdout.write("\n".join(architectures.split(",")) + "\n")
        return 0
    source = Path(arguments[-1]).read_text(encoding="utf-8")
    output = arguments[arguments.index("-o") + 1]
    if "-ptx" in arguments:
        Path(output).write_text("// PTX of a fake compiler\n", encoding="utf-8")
        return 0
    kernels = [(each.group(2), each.group(3)) for each in _KERNEL.finditer(source)]
    if not kernels:
        sys.stderr.write("kernel.cu(1): error: there is no kernel\n")
        return 1
    static = re.search(r"^__shared__ __align__\(128\) .*\[(\d+)\];", source, re.MULTILINE)
    text = source.replace(_DYNAMIC, f"alignas(128) unsigned char shared_memory[{_MOST}];")
    if static is None and text == source:
        text += "\nalignas(128) static unsigned char shared_memory[128];"
    text += "".join(_launch(*kernel, _DYNAMIC in source) for kernel in kernels)
    size = static.group(1) if static else 0
    sys.stderr.write(f"ptxas info    : Used 32 registers, {size} bytes smem\n")
    return _library(text, headers, output)


def _library(text: str, headers: str, output: str) -> int:
    """Compile a text for the host, or take what became of the same text before."""
    cache = Path(os.environ["XDG_CACHE_HOME"], "fake-nvcc")
    library = cache / f"{hashlib.sha256(text.encode()).hexdigest()}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        source_path = Path(output + ".cpp")
        source_path.write_text(text, encoding="utf-8")
        tool = shutil.which("g++") or shutil.which("clang++") or "g++"
        done = subprocess.run([tool, *_FLAGS, f"-I{headers}", str(source_path), "-o", output])
        if done.returncode:
            return done.returncode
        # Others may compile the same text at this time.
        partial = cache / f"{library.name}.{os.getpid()}"
        shutil.copyfile(output, partial)
        partial.replace(library)
    shutil.copyfile(library, output)
    return 0


def _launch(name: str, parameters: str, dynamic: bool) -> str:
    types = [re.sub(r"\w+$", "", p).replace("__restrict__", "").strip() for p in _split(parameters)]
    arguments = ", ".join(f"*static_cast<{t}*>(values[{n}])" for n, t in enumerate(types))
    size = "dynamic" if dynamic else "sizeof shared_memory"
    wrong = "" if dynamic else "if (dynamic) return 1;"
    return f"""
extern "C" __attribute__((visibility("default"))) int count_{name} = {len(types)};
extern "C" __attribute__((visibility("default"))) int launch_{name}(
    unsigned gx, unsigned gy, unsigned threads, unsigned dynamic, void **arguments) {{
  {wrong}
  static void **values;
  values = arguments;
  amos_emulation::launch({{gx, gy, 1}}, threads, shared_memory, {size}, false, true,
                         [] {{ {name}({arguments}); }});
  return 0;
}}
"""


def _split(parameters: str) -> list[str]:
    return [" ".join(parameter.split()) for parameter in parameters.split(",")]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
