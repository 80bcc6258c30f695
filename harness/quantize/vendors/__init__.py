"""Vendors' quantizers: environments of their own, a warm process in each, one forked child per recipe.

:mod:`environments` makes and finds the environments, :mod:`server` runs in them, :mod:`warm` starts it, :mod:`backend`
asks it from inside a quantize child, and :mod:`programs` holds what each vendor's package is told to do.
"""
