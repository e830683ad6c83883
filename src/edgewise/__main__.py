"""Run the command line as `python -m edgewise`."""

from edgewise.cli.app import main

main()
