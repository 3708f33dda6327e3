"""Policy → AppArmor profile: its text, and its compiled form from a cache that all sandboxes share.

`compile` is a pure function of the policy, the phase, the layout and the parser's ABI. `binary` asks
apparmor_parser and keeps what it made. Loading a profile and entering it belong to the sandbox.
"""

from invigilator.profiles.apparmor.abi import Abi, ParserMissingError
from invigilator.profiles.apparmor.automaton import Automaton
from invigilator.profiles.apparmor.cache import binary
from invigilator.profiles.apparmor.parser import CompileError
from invigilator.profiles.apparmor.profile import PREFIX, Layout, Profile, compile

__all__ = [
    "PREFIX",
    "Abi",
    "Automaton",
    "CompileError",
    "Layout",
    "ParserMissingError",
    "Profile",
    "binary",
    "compile",
]
