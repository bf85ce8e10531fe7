"""`cudriver completion`: a script with which a shell completes cudriver's command lines.

It is made of the commands' own parsers, and starts no Python when a key is pressed.
"""

from __future__ import annotations

from dataclasses import dataclass

from cudriver.cli import COMMANDS, terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Action, ArgumentParser, Namespace

FILE, FOLDER, WORDS, LIST, OTHER = "file", "folder", "words", "list", "other"
#: What a value is, by its name in the help.
KINDS = {
    "FILE": FILE,
    "PREFIX": FOLDER,
    "DIR": FOLDER,
    "DIRS": FOLDER,
    "RULES": LIST,
    "NAMES": LIST,
}

EPILOG = """\
To use it, add this line to your shell's configuration:
  source <(cudriver completion bash)   in ~/.bashrc
  source <(cudriver completion zsh)    in ~/.zshrc, after compinit
  cudriver completion fish | source    in ~/.config/fish/config.fish
"""


@dataclass(frozen=True)
class Word:
    """An option or an argument: its flags (none: an argument), and what its value is, if any."""

    flags: tuple[str, ...]
    text: str
    name: str
    kind: str | None
    words: tuple[str, ...]
    optional: bool
    repeated: bool


def parser() -> ArgumentParser:
    """The command's options."""
    result = terminal.parser(
        "cudriver completion",
        description="Print a script with which a shell completes cudriver's command lines.",
        epilog=EPILOG,
        raw=True,
    )
    result.add_argument("shell", choices=sorted(SHELLS), help="which shell it is for")
    return result


def run(arguments: Namespace) -> int:
    """Prints the script; returns the exit code."""
    print(SHELLS[arguments.shell](commands()))
    return 0


def commands() -> dict[str, list[Word]]:
    """What follows each command."""
    from importlib import import_module

    modules = {name: import_module(module) for name, (module, _) in COMMANDS.items()}
    return {name: list(map(word, module.parser()._actions)) for name, module in modules.items()}


def word(action: Action) -> Word:
    """What argparse knows of an option or an argument."""
    name = action.metavar if isinstance(action.metavar, str) else action.dest
    words = tuple(map(str, action.choices or ())) or tuple(listed(name))
    return Word(
        flags=tuple(action.option_strings),
        text=(action.help or "").replace("%%", "%"),
        name=name,
        kind=None if action.nargs == 0 else KINDS.get(name, WORDS if words else OTHER),
        words=words,
        optional=action.nargs == "?",
        repeated=action.nargs == "*" or type(action).__name__ == "_AppendAction",
    )


def listed(name: str) -> list[str]:
    """The words that a value of this name can be, if they can be listed."""
    if name == "RULE":
        from cudriver.cli.explain import rule_names

        return rule_names()
    if name == "RULES":  # of check
        from cudriver.stack.rulebook import rule_names

        return [rule for rule in rule_names() if rule.startswith("CU")]
    from cudriver.stack.tables import table

    if name == "LIBRARY":
        stems = sorted(table("libraries")["libraries"])
        return [*stems, *(stem.removeprefix("lib") for stem in stems)]
    if name in ("PACKAGE", "NAMES"):
        return sorted(table("plan")["frameworks"])
    if name in ("GPU", "CAPABILITY"):
        rows = table("gpus")["gpus"]
        sold = [gpu for row in rows for some in row.values() if type(some) is list for gpu in some]
        names = sorted(gpu for gpu in sold if name == "GPU" and " " not in gpu)
        return [*(row["capability"] for row in rows), *names]
    if name == "SET":
        return [each["name"] for each in table("proven")["sets"]]
    return []


def quoted(text: str) -> str:
    """As one word of a shell; fish takes this form too."""
    return "'" + text.replace("'", "'\\''") + "'"


BASH = """\
_cudriver() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    local command=${COMP_WORDS[1]} kind=words words= first=
    case $command in
%(commands)s
        help) words=%(names)s ;;
    esac
    case "$command $before" in
%(values)s
    esac
    if ((COMP_CWORD == 1)); then kind=words words=%(names)s; fi
    case $kind in
        words) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word") ;;
        list)
            [[ $word != *,* ]] || first=${word%%,*},
            mapfile -t COMPREPLY < <(compgen -P "$first" -W "$words" -- "${word#"$first"}")
            compopt -o nospace
            ;;
        file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
        folder) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
    esac
}
complete -F _cudriver cudriver"""


def bash(known: dict[str, list[Word]]) -> str:
    """A function for bash's `complete`."""
    follow, values = [], []
    for command, words in known.items():
        flags = " ".join(flag for one in words for flag in one.flags)
        line = f"        {command}) words={quoted(flags)}"
        for one in words:
            then = f"kind={one.kind} words={quoted(' '.join(one.words))}"
            if one.flags and one.kind:
                cases = "|".join(f'"{command} {flag}"' for flag in one.flags)
                values.append(f"        {cases}) {then} ;;")
            elif not one.flags and one.kind != OTHER:
                line += f"; [[ $word == -* ]] || {then}"
        follow.append(f"{line} ;;")
    names = quoted(" ".join([*known, "help", "--help", "--version"]))
    return BASH % {"commands": "\n".join(follow), "values": "\n".join(values), "names": names}


def zsh(known: dict[str, list[Word]]) -> str:
    """A function for zsh's completion system."""
    ways = {FILE: "_files", FOLDER: "_files -/", OTHER: " "}

    def specification(one: Word, flag: str) -> str:
        text = one.text.replace("[", "\\[").replace("]", "\\]")
        way = f"({' '.join(one.words)})" if one.words else ways.get(one.kind or "")
        if one.kind == LIST:
            way = f"{{_values -s , {one.name} {' '.join(one.words)}}}"
        name = one.name.replace(":", "\\:")
        if not flag:
            return quoted(f"{'*' if one.repeated else ''}:{name}:{way}")
        value = f"{'::' if one.optional else ':'}{name}:{way}" if way else ""
        return quoted(f"{'*' if one.repeated else ''}{flag}[{text}]{value}")

    cases = []
    for command, words in known.items():
        each = [specification(one, flag) for one in words for flag in one.flags or ("",)]
        cases.append(f"        {command}) _arguments -s {' '.join(each)} ;;")
    names = [quoted(f"{name}:{COMMANDS[name][1]}") for name in known]
    return "\n".join([
        "#compdef cudriver",
        "_cudriver() {",
        f"    local -a commands=({' '.join(names)})",
        "    if ((CURRENT == 2)); then _describe command commands; return; fi",
        "    local command=$words[2]",
        "    shift words; ((CURRENT--))",
        "    case $command in", *cases, "        help) _describe command commands ;;", "    esac",
        "}",
        "if [[ $funcstack[1] == _cudriver ]]",  # found in fpath, rather than sourced
        'then _cudriver "$@"; else compdef _cudriver cudriver; fi',
    ])  # fmt: skip


def fish(known: dict[str, list[Word]]) -> str:
    """Rules for fish's `complete`."""
    folders = "-x -a '(__fish_complete_directories)'"
    ways = {FILE: "-r -F", FOLDER: folders, OTHER: "-x"}
    lines = ["complete -c cudriver -f"]
    for command, follow in known.items():
        lines.append(
            f"complete -c cudriver -n __fish_use_subcommand -a {command}"
            f" -d {quoted(COMMANDS[command][1])}"
        )
        for one in follow:
            way, words = ways.get(one.kind or "", ""), " ".join(one.words)
            if words:
                way = f"-x -a {quoted(words)}"
            if one.kind == LIST:
                way = f"-x -a {quoted(f'(__fish_append , {words})')}"
            flags = [f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in one.flags]
            if not flags and one.kind == OTHER:
                continue
            lines.append(
                f"complete -c cudriver -n '__fish_seen_subcommand_from {command}'"
                f" {' '.join([*flags, way])} -d {quoted(one.text)}"
            )
    return "\n".join(lines)


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
