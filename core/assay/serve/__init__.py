"""The HTTP reward server."""
