"""`python -m kvrelay.cluster.cli` is `kvrelay`."""

from kvrelay.cluster.cli import main

main()
