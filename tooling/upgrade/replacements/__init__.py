"""Where a name went that a new release no longer has: moved, renamed, or really gone. Evidence, never a guess by name
alone where several homes are possible.

advice       what the old release itself says to use instead
shims        what an alias, a wrapper or an empty subclass stood for
imports      what the package's own importers import now
bodies       definitions compared by their text
subject      what exactly is gone, as the old release has it
homes        new definitions of a function, class or value, weighed
modules      new homes of whole modules
members      new names of methods, attributes, fields and enum members
parameters   new names of parameters
explain      all of it: `Explainer`
"""

from tooling.upgrade.replacements.explain import Explainer

__all__ = ["Explainer"]
