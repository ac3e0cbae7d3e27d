"""Where a codec pays: a pure function of its figures."""


def break_even_gbit_per_s(
    raw_bytes: int, ratio: float, encode_gb_per_s: float, decode_gb_per_s: float
) -> float:
    """The link rate below which encoding, sending less and decoding is faster than sending.

        raw / B  >  raw / C  +  raw / (ratio B)  +  raw / D
        B  <  raw (1 - 1 / ratio) / (raw / C  +  raw / D)

    Assumed: the three follow each other, nothing overlaps; one core encodes and one decodes,
    and nobody else wants them; rates are the same at every length. A pipeline of blocks pays
    up to faster links, and a busy core at slower ones only.

    Args:
        raw_bytes: length before encoding; > 0.
        ratio: raw over encoded bytes, the envelope included; > 0.
        encode_gb_per_s: C, raw bytes by time; > 0.
        decode_gb_per_s: D, raw bytes by time; > 0.

    Returns:
        B in Gbit/s (1e9 bits); 0 if the codec never pays.

    Raises:
        ValueError: an argument that is not positive.
    """
    if min(raw_bytes, ratio, encode_gb_per_s, decode_gb_per_s) <= 0:
        raise ValueError(
            f"break-even of {raw_bytes} bytes at ratio {ratio}, {encode_gb_per_s} and "
            f"{decode_gb_per_s} GB/s: all must be positive"
        )
    codec_s = raw_bytes / (1e9 * encode_gb_per_s) + raw_bytes / (1e9 * decode_gb_per_s)
    saved_bits = 8 * (raw_bytes - raw_bytes / ratio)
    return max(0.0, saved_bits / codec_s / 1e9)
