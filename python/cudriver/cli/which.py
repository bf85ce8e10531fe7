"""`cudriver which`: the file each CUDA library resolves to, by which rule, and what it shadows."""

from __future__ import annotations

import os
import sys

from cudriver.cli import USAGE_ERROR, target, terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from cudriver.stack.facts import Facts, Library
    from cudriver.stack.resolved import Resolved

NOT_FOUND = 1
NOTHING = 3


def parser() -> ArgumentParser:
    """The command's options."""
    result = terminal.parser(
        "cudriver which",
        description="The file that each CUDA library resolves to in an environment, the dynamic "
        "loader's rule that found it, and the files which that rule hides.",
        epilog="exit status: 0 all found, 1 a library is not found, 2 usage, "
        "3 no CUDA library in use here, or could not tell; --pid: 1 another file is mapped",
    )
    add = result.add_argument
    add("library", metavar="LIBRARY", nargs="*", help="libcudnn.so.9, libcudnn or cudnn")
    add("--prefix", metavar="PREFIX", help="the environment (default: as check)")
    add(
        "--ld-library-path",
        metavar="DIRS",
        help="what if LD_LIBRARY_PATH were this; only what would change is shown",
    )
    add("--pid", metavar="PID", type=int, help="what this process has mapped, beside these files")
    add("--json", action="store_true", help="as JSON")
    target.add_options(result)
    return result


def run(arguments: Namespace) -> int:
    """Prints the libraries and returns the exit code."""
    if arguments.pid is not None:
        return _of_process(arguments)
    try:
        (asked,) = target.asked([arguments.prefix], arguments)
    except target.BadOption as error:
        terminal.complain(str(error))
        return USAGE_ERROR
    from cudriver.stack.collect import collect_libraries
    from cudriver.stack.resolved import resolve

    facts = collect_libraries(asked)
    other = _what_if(asked.prefix, arguments)
    found = resolve(other or facts, arguments.library)
    before: dict[str, Library] = {}
    if other is not None:
        before = {library.soname: library for library in facts.libraries}
        found.libraries = [
            library
            for library in found.libraries
            if library.soname not in before or before[library.soname].path != library.path
        ]
    if arguments.json:
        _print_json(found, before)
    else:
        _print_text(found, before)
    return found.exit_code


def _of_process(arguments: Namespace) -> int:
    """What a process has mapped. 0: the files found, 1: another one, 3: no CUDA library."""
    from cudriver.cli.which_pid import Running, compare
    from cudriver.stack.resolved import wanted
    from cudriver.stack.say import say
    from cudriver.stack.text import clean, pad

    try:
        process = Running(arguments.pid)
        arguments.root = process.root if arguments.root == "/" else arguments.root
        (asked,) = target.asked([arguments.prefix or process.prefix], arguments, process.variables)
    except FileNotFoundError:
        terminal.complain(f"--pid {arguments.pid}: there is no such process")
        return USAGE_ERROR
    except (OSError, target.BadOption) as error:
        terminal.complain(f"--pid {arguments.pid}: {getattr(error, 'strerror', None) or error}")
        return USAGE_ERROR
    from cudriver.stack.collect import collect_libraries

    prefix, facts = asked.prefix, collect_libraries(asked)
    rows = compare(process.mapped, facts.libraries)
    names = arguments.library
    rows = [row for row in rows if wanted(process.mapped[row[0]], "", names)]
    if arguments.json:
        import json

        made = [{"mapped": p, "is": what, "found": x and x.path} for p, what, x in rows]
        print(json.dumps({"schema": 1, "prefix": prefix, "libraries": made}, indent=2))
    else:
        style = terminal.style(sys.stdout)
        lines = [f"{style.paint(clean(prefix), 'bold')}"]
        for path, what, library in rows:
            lines.append(f"{pad(say(what), 13)} {clean(path)}")
            if what == "another" and library is not None:
                values = {"path": clean(library.path), "rule": library.found_by}
                lines.append(" " * 14 + say("instead of {path} (by {rule})", **values))
        found = [process.mapped[path] for path, *_ in rows]
        for name in names:
            if not any(wanted(each, "", [name]) for each in found):
                lines.append(
                    say("{name}: no CUDA library of that name is in use here", name=clean(name))
                )
        lines += [say("the process has mapped no CUDA library")] * (not process.mapped)
        terminal.write("\n".join(lines) + "\n")
    if any(what == "another" for _, what, _ in rows):
        return NOT_FOUND
    return 0 if rows else NOTHING


def _what_if(prefix: str, arguments: Namespace) -> Facts | None:
    if arguments.ld_library_path is None:
        return None
    environ = dict(os.environ) if arguments.root == "/" else {}
    environ["LD_LIBRARY_PATH"] = arguments.ld_library_path
    from cudriver.stack.collect import collect_libraries

    (asked,) = target.asked([prefix], arguments, environ)
    return collect_libraries(asked)


def _print_text(found: Resolved, before: dict[str, Library]) -> None:
    from cudriver.stack.report.text import library_lines, short_path
    from cudriver.stack.say import say
    from cudriver.stack.text import clean

    facts, libraries, missing = found.facts, found.libraries, found.missing
    style = terminal.style(sys.stdout)
    lines = [f"{style.paint(clean(facts.environment.prefix), 'bold')}"]
    for library in libraries:
        lines += library_lines(library, facts, style, was=before.get(library.soname))
    for lacking in missing:
        name = style.paint(clean(lacking.soname), "bold", "red")
        lines.append(say("{name} is not found", name=name))
        user = short_path(facts, lacking.needed_by)
        lines.append("    " + say("needed by {path}", path=user))
        for place in lacking.searched:
            lines.append("    " + say("not in {path}", path=short_path(facts, place)))
    for name in found.unknown:
        lines.append(say("{name}: no CUDA library of that name is in use here", name=clean(name)))
    if before and not libraries and not missing:
        lines.append(say("nothing would change"))
    elif not libraries and not missing and not found.unknown and not facts.unsure:
        lines.append(say("no CUDA library is in use here"))
    lines += [say("could not tell: {why}", why=clean(why)) for why in facts.unsure]
    terminal.write("\n".join(lines) + "\n")


def _print_json(found: Resolved, before: dict[str, Library]) -> None:
    import json

    document = found.to_dict()
    for row in document["libraries"]:
        if row["soname"] in before:
            row["instead_of"] = before[row["soname"]].path
    print(json.dumps(document, indent=2))
