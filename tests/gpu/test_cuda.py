"""The sources of kernels are CUDA C++: its compilers take them, without a GPU."""

import shutil
import subprocess
from pathlib import Path

import pytest

from minipipe.gpu import kernels

FOLDER = Path(kernels.__file__).parent
FILES = sorted({path.stem for path in FOLDER.glob("*.cu")} - {"common"})
ARCHITECTURES = ["sm_80", "sm_90"]
pytestmark = pytest.mark.slow
OF_CUPY = "-ftz=true"  # added to the options of every kernel


@pytest.mark.parametrize("real", ["float", "double"])
@pytest.mark.parametrize("file", FILES)
def test_nvcc_compiles_every_source_without_a_warning_or_a_spill(file, real, tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc, the compiler of CUDA")
    source = tmp_path / f"{file}.cu"
    source.write_text(kernels.source(file, real))
    targets = [f"-gencode=arch=compute_{a[3:]},code={a}" for a in ARCHITECTURES]
    options = [
        *kernels.OPTIONS,
        OF_CUPY,
        "-Xptxas=-v",
        "-Werror=all-warnings",
        *targets,
    ]
    output = tmp_path / "kernels.fatbin"
    done = subprocess.run(
        ["nvcc", *options, "--fatbin", "-o", output, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    spills = [line for line in done.stderr.splitlines() if "spill stores" in line]
    assert spills and all(" 0 bytes spill stores" in line for line in spills)


@pytest.mark.parametrize("file", FILES)
def test_the_compiler_that_cupy_calls_takes_every_source(file):
    cupy = pytest.importorskip("cupy", reason="needs CuPy: pip install '.[gpu]'")
    nvrtc = cupy.cuda.nvrtc
    try:
        nvrtc.getVersion()
    except (RuntimeError, OSError) as error:
        pytest.skip(f"needs CuPy with NVRTC: {error}")
    for real in ("float", "double"):
        for architecture in ARCHITECTURES:
            program = nvrtc.createProgram(kernels.source(file, real), "", [], [])
            options = [*kernels.OPTIONS, OF_CUPY, f"-arch={architecture}"]
            nvrtc.compileProgram(program, options)
            assert nvrtc.getProgramLog(program).strip("\0\n") == ""
