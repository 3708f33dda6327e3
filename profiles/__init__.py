"""Policies: the model, the language, the library, and one compiler for each thing that is put in force.

`library.load` finds and reads a policy. Pure functions compile it: `seccomp.compile`, `network.compile`,
`limits.compile`, `protected.PathClasses`; a compiler to AppArmor would be `apparmor.py` beside them, and the
tier `apparmor` is already what `explain` names for denials by path. `explain`, `diff` and `check` answer the
engineer's questions.
"""
