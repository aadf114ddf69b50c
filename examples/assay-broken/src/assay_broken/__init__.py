"""Imports a library that does not exist, as a plugin with a missing dependency does."""

import a_library_that_is_not_installed  # noqa: F401  # pyright: ignore  (the point of this package)
