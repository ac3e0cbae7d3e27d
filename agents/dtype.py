"""In what numbers a CPU computes models that nobody has named a dtype for.

PyTorch multiplies matrices of bfloat16 fast where the CPU has AVX-512 (or, on Arm, bf16); on
others it takes sixty times as long as with float32, which a prompt of 512 tokens shows: 15 s
instead of .25 s with AVX-512, and 1.9 s in float32 (SmolLM2-135M, two cores of AVX2, vLLM 0.29).
There float32 is what `auto` means. KV is twice as large then, and engines that compute in different
dtypes share none: where nodes differ, name the dtype.
"""

from pathlib import Path

AUTO = "auto"
_CPUINFO = Path("/proc/cpuinfo")
# What oneDNN asks for before it takes bfloat16 on x86.
_X86 = frozenset({"avx512bw", "avx512vl", "avx512dq"})
_ARM = frozenset({"bf16"})


def cpu_dtype(cpuinfo: Path = _CPUINFO) -> str:
    """`bfloat16` where this CPU is fast at it, else `float32`."""
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            flags = frozenset(value.split())
            return "bfloat16" if flags >= _X86 or flags >= _ARM else "float32"
    return "float32"
