"""Compiles every kernel as a GPU would get it, on a machine without one, and fails on what must not be there.

    python3 -m venv VENV && VENV/bin/pip install -r kernels/requirements.txt
    VENV/bin/python kernels/compile.py            # check: what CI runs
    VENV/bin/python kernels/compile.py --write    # bring variants.tsv and ptx/ up to date

For sm_80, sm_90 and sm_100: NVRTC to PTX, ptxas to a cubin. It fails if

- a kernel spills, or keeps anything in local memory;
- it takes more registers than variants.tsv records;
- its PTX holds `.ftz`, `.approx`, or a multiply-add that no source spelled: then results would differ from the twins;
- a kernel is missing from variants.tsv, or a row names none;
- ptx/NAME.ptx.z, the fallback for machines without NVRTC, is not what the sources give.
"""

import argparse
import concurrent.futures
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile
import zlib

HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE / "variants.tsv"
FALLBACK = HERE / "ptx"
SOURCES = FALLBACK / "SOURCES"
ARCHITECTURES = ["80", "90", "100"]
# NVRTC's program names and options: part of what the fallback is made of.
OPTIONS = ["--std=c++17", "--fmad=false"]
FORBIDDEN = [r"\.ftz\b", r"\.approx\b", r"\bfma\.rn\.f64\b"]
# The only source with a multiply-add of its own.
MAY_CONTRACT = "driftless_detect_deepspeed_cpu"
FILE_BYTES_MAX = 64 << 10


class Toolkit:
    """NVRTC and ptxas of the packages in requirements.txt."""

    def __init__(self):
        found = [root for path in sys.path for root in pathlib.Path(path).glob("nvidia/cu13")]
        if not found:
            sys.exit("no CUDA compiler: pip install -r kernels/requirements.txt, in a virtual environment")
        self.ptxas = found[0] / "bin" / "ptxas"
        # NVRTC looks for its builtins by name alone.
        (builtins,) = (found[0] / "lib").glob("libnvrtc-builtins.so.*")
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        (library,) = (found[0] / "lib").glob("libnvrtc.so.*")
        self.nvrtc = ctypes.CDLL(str(library))

    def text(self, program, what):
        """One of the texts of a program: its log or its PTX."""
        size = ctypes.c_size_t()
        getattr(self.nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self.nvrtc, f"nvrtcGet{what}")(program, buffer)
        return buffer.value.decode()

    def ptx(self, source, architecture):
        """The PTX of a source file; headers go by name, as in the program that embeds them."""
        headers = sorted((HERE / "include").glob("*.cuh"))
        texts = (ctypes.c_char_p * len(headers))(*[header.read_bytes() for header in headers])
        names = (ctypes.c_char_p * len(headers))(*[header.name.encode() for header in headers])
        options = [*OPTIONS, f"--gpu-architecture=compute_{architecture}"]
        arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        program = ctypes.c_void_p()
        name = source.name.encode()
        self.nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source.read_bytes(), name, len(headers), texts, names
        )
        failed = self.nvrtc.nvrtcCompileProgram(program, len(options), arguments)
        log = self.text(program, "ProgramLog")
        if failed or log.strip():
            sys.exit(f"{source.name} for compute_{architecture}:\n{log}")
        ptx = self.text(program, "PTX")
        self.nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        return ptx

    def resources(self, ptx, architecture):
        """Registers of a module's kernel, and its bytes of local memory and of spills."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "kernels.ptx"
            path.write_text(ptx)
            command = [self.ptxas, "-v", f"-arch=sm_{architecture}", path, "-o", path.with_suffix(".cubin")]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"ptxas for sm_{architecture}:\n{done.stderr}")
        pattern = r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"
        *local, registers = map(int, re.search(pattern, done.stderr, re.DOTALL).groups())
        return registers, sum(local)


def entries(ptx):
    """Each kernel of a module as a module of its own, without comments and names that it does not use."""
    head, *bodies = re.split(r"(?m)^(?=\.visible \.entry )", ptx)
    head = re.sub(r"(?m)^//.*\n", "", head)
    lines = [line for line in head.splitlines() if line.strip()]
    modules = {}
    for body in bodies:
        body = re.sub(r"(?m)^\s*//.*\n|^\s*\n", "", body)
        name = re.match(r"\.visible \.entry (\w+)", body).group(1)
        words = set(re.findall(r"[\w$]+", body))
        # A constant of the source is a line of its own: its name is the first word behind the type.
        used = [line for line in lines if not line.startswith(".global") or words & set(re.findall(r"[\w$]+", line)[3:])]
        modules[name] = "\n".join(used) + "\n" + body
    return modules


def compiled(architecture):
    """PTX and resources of every kernel for one architecture."""
    toolkit = Toolkit()
    kernels = {}
    for source in sorted(HERE.glob("*.cu")):
        for name, module in entries(toolkit.ptx(source, architecture)).items():
            kernels[name] = (source.name, module, *toolkit.resources(module, architecture))
    return kernels


def read_table():
    """The rows of variants.tsv by kernel."""
    if not TABLE.exists():
        return {}
    header, *lines = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return {line[0]: dict(zip(header, line)) for line in lines}


def offenses(kernels, table):
    """What is wrong, a line each."""
    names = set(kernels[ARCHITECTURES[0]])
    for name in sorted(set(table) - names):
        yield f"variants.tsv: {name} is no kernel"
    for architecture in ARCHITECTURES:
        for name, (source, ptx, registers, local) in sorted(kernels[architecture].items()):
            where = f"{source}: {name} for sm_{architecture}"
            if name not in table:
                yield f"{where}: no row in variants.tsv"
                continue
            recorded = int(table[name][f"sm_{architecture}"])
            if registers > recorded:
                yield f"{where}: {registers} registers, expected at most {recorded}"
            if local:
                yield f"{where}: {local} bytes of spills and local memory, expected none"
            forbidden = FORBIDDEN + ([] if name == MAY_CONTRACT else [r"\bfma\.rn\.f32\b"])
            for pattern in forbidden:
                # What division and roots are made of is below PTX: there nothing is approximate.
                if found := re.search(pattern, ptx):
                    yield f"{where}: {found.group(0)} in the PTX"


def sources_digest():
    """FNV-1a of all that the PTX is made of: by it a Rust test sees stale fallbacks without a compiler."""
    value = 0xCBF29CE484222325
    for path in [*sorted((HERE / "include").glob("*.cuh")), *sorted(HERE.glob("*.cu"))]:
        for byte in path.name.encode() + b"\0" + path.read_bytes() + b"\0":
            value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}\n"


def stale(modules):
    """Fallbacks that are not what the sources give."""
    if not SOURCES.exists() or SOURCES.read_text() != sources_digest():
        yield "ptx/SOURCES is not of these sources: run kernels/compile.py --write"
    for name, ptx in sorted(modules.items()):
        path = FALLBACK / f"{name}.ptx.z"
        if not path.exists() or zlib.decompress(path.read_bytes()).decode() != ptx:
            yield f"ptx/{path.name} is not what the sources give: run kernels/compile.py --write"
        elif path.stat().st_size > FILE_BYTES_MAX:
            yield f"ptx/{path.name}: {path.stat().st_size} bytes, expected at most {FILE_BYTES_MAX}"
    for path in sorted(set(FALLBACK.glob("*")) - {SOURCES}):
        if path.name.removesuffix(".ptx.z") not in modules:
            yield f"ptx/{path.name} is of no kernel"


def write(kernels, table, modules):
    """Brings registers and fallbacks up to date; twins and vectors of new kernels are for a person to fill in."""
    comments = [line for line in TABLE.read_text().splitlines() if line.startswith("#")] if TABLE.exists() else []
    columns = [f"sm_{architecture}" for architecture in ARCHITECTURES]
    lines = comments + ["\t".join(["kernel", "file", "twin", "golden", *columns])]
    for name, (source, *_) in sorted(kernels[ARCHITECTURES[0]].items()):
        row = table.get(name, {"twin": "?", "golden": "?"})
        registers = [str(kernels[architecture][name][2]) for architecture in ARCHITECTURES]
        lines.append("\t".join([name, source, row["twin"], row["golden"], *registers]))
    TABLE.write_text("\n".join(lines) + "\n")
    FALLBACK.mkdir(exist_ok=True)
    for path in FALLBACK.glob("*"):
        path.unlink()
    for name, ptx in modules.items():
        (FALLBACK / f"{name}.ptx.z").write_bytes(zlib.compress(ptx.encode(), 9))
    SOURCES.write_text(sources_digest())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="bring variants.tsv and ptx/ up to date")
    is_writing = parser.parse_args().write
    with concurrent.futures.ProcessPoolExecutor() as pool:
        kernels = dict(zip(ARCHITECTURES, pool.map(compiled, ARCHITECTURES)))
    modules = {name: ptx for name, (_, ptx, *_) in kernels[ARCHITECTURES[0]].items()}
    table = read_table()
    if is_writing:
        write(kernels, table, modules)
        table = read_table()
    found = [*offenses(kernels, table), *stale(modules)]
    for line in found:
        print(line, file=sys.stderr)
    variants = len(modules)
    print(f"{variants} kernels for {', '.join('sm_' + each for each in ARCHITECTURES)}: {len(found)} offenses")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
