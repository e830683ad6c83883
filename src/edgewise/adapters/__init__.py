"""Edgewise inside other programs: one module each, none of which knows another."""
