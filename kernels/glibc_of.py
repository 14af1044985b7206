#!/usr/bin/env python3
"""Fails if a program asks for a newer C library than it may, or for a library beside it: glibc_of.py BINARY VERSION."""
import re
import subprocess
import sys

# What every glibc of x86-64 brings.
OF_GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2", "libgcc_s.so.1"}


def read(binary, what):
    return subprocess.run(["readelf", "--wide", what, binary], check=True, capture_output=True, text=True).stdout


def main(binary, newest):
    def number(version):
        return tuple(map(int, version.split(".")))

    header = read(binary, "--file-header")
    if "X86-64" not in header:
        sys.exit(f"{binary} is not for x86-64:\n{header}")
    versions = set(re.findall(r"\bGLIBC_(\d+(?:\.\d+)+)", read(binary, "--version-info")))
    if not versions:
        sys.exit(f"{binary} names no version of glibc: it cannot be told what it needs")
    beyond = sorted((v for v in versions if number(v) > number(newest)), key=number)
    if beyond:
        sys.exit(f"{binary} asks for glibc {', '.join(beyond)}, at most {newest} is allowed")
    libraries = set(re.findall(r"\(NEEDED\).*\[(.*)\]", read(binary, "--dynamic")))
    if libraries - OF_GLIBC:
        sys.exit(f"{binary} needs {', '.join(sorted(libraries - OF_GLIBC))}")
    print(f"{binary}: glibc {max(versions, key=number)}, at most {newest} is allowed")


main(*sys.argv[1:])
