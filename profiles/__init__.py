"""Policies: the model, the language, the library, and one compiler for each thing that is put in force.

`library.load` finds and reads a policy. Pure functions compile it: `apparmor.compile`, `seccomp.compile`,
`network.compile`, `limits.compile`, `protected.PathClasses`. `explain`, `diff` and `check` answer the
engineer's questions; `apparmor.importing` makes a policy of an existing profile.
"""
