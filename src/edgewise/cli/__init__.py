"""The command line, and the work behind it as plain functions that take ASE atoms and any ASE calculator."""
