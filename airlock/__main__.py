"""`python -m airlock` is the command line."""

from airlock.cli import main

main()
