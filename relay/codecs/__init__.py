"""Lossless codecs for what goes over a link: fewer bytes for some time of a core."""
