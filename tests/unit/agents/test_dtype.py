from pathlib import Path

import pytest

from kvrelay.agents.dtype import cpu_dtype


@pytest.mark.parametrize(
    ("line", "dtype"),
    [
        ("flags\t\t: fpu sse avx2 fma", "float32"),
        ("flags\t\t: fpu avx2 avx512f avx512dq avx512bw avx512vl", "bfloat16"),
        ("flags\t\t: fpu avx2 avx512f", "float32"),
        ("Features\t: fp asimd bf16", "bfloat16"),
        ("Features\t: fp asimd", "float32"),
        ("model name\t: unknown", "float32"),
    ],
)
def test_bfloat16_where_it_is_fast(tmp_path: Path, line: str, dtype: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nmodel name\t: some\n{line}\n")
    assert cpu_dtype(cpuinfo) == dtype
