"""State that an optimizer owns beside its pure parts; the only place for extras."""
