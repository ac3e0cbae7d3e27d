"""In what numbers a CPU computes models that nobody has named a dtype for.

PyTorch multiplies matrices of bfloat16 fast where the CPU has AVX-512 (or, on Arm, bf16). With AVX2
alone a prompt of 512 tokens took 15.2 s in bfloat16 and 1.9 s in float32 (SmolLM2-135M, two cores,
vLLM 0.29).
There float32 is what `auto` means. KV is twice as large then, and engines that compute in different
dtypes share none: where nodes differ, name the dtype.
"""

from pathlib import Path

AUTO = "auto"
_CPUINFO = Path("/proc/cpuinfo")
# What oneDNN asks for before it takes bfloat16 on x86.
_X86 = frozenset({"avx512bw", "avx512vl", "avx512dq"})
_ARM = frozenset({"bf16"})


def first_cpu(cpuinfo: Path = _CPUINFO) -> dict[str, str]:
    """What the kernel says of the first processor, by name."""
    processor = cpuinfo.read_text().split("\n\n", 1)[0]
    parts = (line.partition(":") for line in processor.splitlines())
    return {name.strip(): value.strip() for name, _, value in parts}


def cpu_dtype(cpuinfo: Path = _CPUINFO) -> str:
    """`bfloat16` where this CPU is fast at it, else `float32`."""
    told = first_cpu(cpuinfo)
    flags = set(told.get("flags", told.get("Features", "")).split())
    return "bfloat16" if flags >= _X86 or flags >= _ARM else "float32"
