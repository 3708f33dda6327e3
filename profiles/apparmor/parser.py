"""apparmor_parser: text in, binary profile out; what it refuses is said of the policy's line."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from invigilator.profiles.apparmor import abi
from invigilator.profiles.apparmor.profile import Profile
from invigilator.profiles.errors import Place, PolicyError

COMPILE_S = 60.0
"""Longest compilation; a profile of a policy takes some milliseconds of CPU."""
BEGINS = b"\x04\x08\x00version\x00"
"""How a binary profile begins (a named field, policy_unpack.c)."""
FEATURES = Path("/sys/kernel/security/apparmor/features")
"""What the running kernel's AppArmor mediates."""

_LINE = re.compile(r"at line (\d+): (.+)")
_NOISE = re.compile(r"^(Cache read/write disabled|Warning|ERROR (merging|processing|expanding))")


class CompileError(RuntimeError):
    """The parser failed in a way that no line of the policy explains."""


def run(profile: Profile, features: Path | None) -> bytes:
    """The binary of a profile for a kernel with these features.

    Raises PolicyError where the parser refuses a rule, ParserMissingError without one, CompileError else.
    """
    # No file of the machine's own settings may change what is made.
    command = [abi.find(), "--config-file=/dev/null", "-Q", "-K", "-S"]
    if features is not None:
        command += [f"--kernel-features={features}"]
    try:
        done = subprocess.run(
            command,
            input=profile.text.encode(),
            capture_output=True,
            timeout=COMPILE_S,
            check=False,
            env=_environment(),
        )
    except OSError as error:
        raise abi.ParserMissingError(f"{command[0]} does not run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"apparmor_parser took more than {COMPILE_S:g} s") from error
    if done.returncode == 0 and done.stdout.startswith(BEGINS):
        return done.stdout
    raise refusal(profile, done.stderr.decode("utf-8", "replace"), done.returncode)


def _environment() -> dict[str, str]:
    """Messages in the language that is looked for here."""
    return {**os.environ, "LC_ALL": "C"}


def _refused_alone(profile: Profile) -> Place | None:
    """Some messages name neither line nor rule; then each of the policy's own rules is tried by itself."""
    rows = profile.text.split("\n")
    for line in profile.raw_lines:
        text = f'{rows[0]}\nprofile "{profile.name}" {{\n{rows[line - 1]}\n}}\n'
        command = [abi.find(), "--config-file=/dev/null", "-Q", "-K", "-S"]
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, timeout=COMPILE_S, check=False
        )
        if done.returncode != 0:
            return profile.sources.get(line)
    return None


def refusal(profile: Profile, said: str, status: int) -> PolicyError | CompileError:
    """The parser's message as an error of the policy's line, where one is to be found."""
    match = _LINE.search(said)
    words = match[2] if match else _first_words(said)
    number = int(match[1]) if match else None
    place = _place(profile, number, said) or _refused_alone(profile)
    if place is None:
        return CompileError(f"apparmor_parser refused {profile.name} ({status}): {words}")
    rule = _rule(profile, place)
    words = words.strip().rpartition("apparmor_parser: ")[2].rstrip(".")
    message = f"apparmor_parser refuses `{rule}`: {words}"
    return PolicyError.at(place, message, "correct the rule (apparmor.d(5))")


def _place(profile: Profile, number: int | None, said: str) -> Place | None:
    """By the line; a rule that is only found wanting at its end is reported on the next."""
    if number is not None:
        return profile.sources.get(number) or profile.sources.get(number - 1)
    rows = profile.text.split("\n")
    named = re.findall(r"(?:rule|variable|input line|expanding) '?([^\s']+)", said)
    for word in named:
        for line, place in profile.sources.items():
            if word in rows[line - 1]:
                return place
    return None


def _rule(profile: Profile, place: Place) -> str:
    rows = profile.text.split("\n")
    found = next((rows[line - 1] for line, one in profile.sources.items() if one == place), "")
    return found.strip().removesuffix(",")


def _first_words(said: str) -> str:
    rows = [row for row in said.splitlines() if row.strip() and not _NOISE.match(row)]
    return rows[0] if rows else "no message"
