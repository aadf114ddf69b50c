"""What runs inside a jail: standard library only, imported there by plain module name, never by the host's assay."""
