"""Completion of verbs and flags in shells: a script with all words, made from the verbs' data classes when installed.

Libraries for this (argcomplete, shtab) read one argparse parser; ours are made from a verb's data class on each call.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from danalab.cli._shared.flags import FIELD, shared_options
from danalab.cli._shared.options import options_of
from danalab.errors import UserError
from danalab.train.config.fields import field_types, flag

_BASH = """\
# Tab completion of danalab; made by: danalab --install-completion bash
_danalab() {{
  local verb="${{COMP_WORDS[1]}}" subverb="${{COMP_WORDS[2]}}" word="${{COMP_WORDS[COMP_CWORD]}}" known=""
  if [ "$COMP_CWORD" -eq 1 ]; then known="{verbs}"; else
    case "$verb $subverb" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$known" -- "$word"))
}}
complete -o default -F _danalab danalab
"""
_PLACES = {
    "bash": (".local/share/bash-completion/completions/danalab", "new shells complete, where bash-completion is there"),
    "zsh": (".zfunc/_danalab", "for new shells, ~/.zshrc needs: fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/danalab.fish", "new shells complete"),
}  # fmt: skip


def install(flag_types: Mapping[str, type | None], shell: str = "") -> str:
    """Write the script for a shell, by default $SHELL, where it is looked for; returns what to tell the user."""
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in _PLACES:
        raise UserError(f"no completion for the shell '{shell}'; give one: --install-completion {' | '.join(_PLACES)}")
    place, then = _PLACES[shell]
    file = Path.home() / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script(shell, flag_types), encoding="utf-8")
    return f"{file}: written; {then}"


def script(shell: str, flag_types: Mapping[str, type | None]) -> str:
    """The script for bash, zsh or fish."""
    words = _words(flag_types)
    verbs = words.pop("")
    if shell == "fish":
        lines = ["complete -c danalab -f -n __fish_use_subcommand -a " + f"'{' '.join(verbs)}'"]
        for path, known in words.items():
            seen = " && ".join(f"__fish_seen_subcommand_from {word}" for word in path.split())
            lines += [f"complete -c danalab -n '{seen}' -a '{' '.join(known)}'"]
        return "\n".join(lines) + "\n"
    # The longer patterns first: `data prepare` before `data`.
    ordered = sorted(words.items(), key=lambda item: -len(item[0].split()))
    cases = [f'      "{path}"{"" if " " in path else " *"}) known="{" ".join(known)}" ;;' for path, known in ordered]
    cases = [case.replace('" *)', ' "*)') for case in cases]
    text = _BASH.format(verbs=" ".join(verbs), cases="\n".join(cases))
    if shell == "zsh":
        return f"#compdef danalab\nautoload -Uz bashcompinit && bashcompinit\n{text}"
    return text


def _words(flag_types: Mapping[str, type | None]) -> dict[str, list[str]]:
    """ "" -> verbs, verb -> its subverbs and flags, verb subverb -> its flags."""
    words: dict[str, list[str]] = {path: [] for path in flag_types}
    for path, flags in flag_types.items():
        if flags is not None:
            options = options_of(flags, leave_out=FIELD)
            options += shared_options() if FIELD in field_types(flags) else []
            words[path] = ["--help", *(flag(option.name) for option in options if not option.positional)]
    for path in flag_types:
        verb, _, name = path.partition(" ")
        if name:
            words[verb] = [name, *words[verb]]
    return {"": [path for path in flag_types if " " not in path], **words}
