"""Imports the user's own modules, by name or by file path; failures are explained in one sentence."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from importlib.machinery import ModuleSpec
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from t3d.errors import UserError, did_you_mean, text_of

LOG = logging.getLogger("t3d.imports")
Value = TypeVar("Value")

_allowed: Collection[str] | None = None  # what of the user's own may be imported in this process now; None: everything
EXTRAS = {"gymnasium.envs.box2d": "box2d", "pybullet_envs_gymnasium": "pybullet"}  # module -> extra that installs it
MOST_NAMED = 5  # files of a folder
INSIDE_RUN = "{name} is in {path}, and no file inside a run's folder is ever imported; move it"


class NotImported(UserError):
    """A run's config names code that this command does not import."""

    def __init__(self, name: str, role: str) -> None:
        super().__init__(
            f"the {role} {name} is not imported: only t3d train, tune, resume, eval, record and play import what a "
            "config names"
        )
        self.name = name


@contextmanager
def importing(names: Collection[str] | None) -> Iterator[None]:
    """Lets the process import of the user's own modules only what is named, e.g. my_rule.py:RULE; None: everything."""
    global _allowed  # noqa: PLW0603 (one for all threads, as are the modules)
    before, _allowed = _allowed, names
    try:
        yield
    finally:
        _allowed = before


def is_path(where: str) -> bool:
    """Whether this is spelled like a file path rather than a module name."""
    return where.endswith(".py") or where.startswith(".") or os.sep in where


def is_here(name: str) -> bool:
    """Whether a module of this name is in the current folder."""
    return _file_at(Path(*name.split("."))) is not None


def file_of(where: str) -> Path:
    """Returns the absolute path of a file, given with or without .py, or as a package's folder."""
    path = Path(os.path.abspath(where))  # noqa: PTH100 (removes .., keeps links)
    if (file := _file_at(path)) is not None:
        return file
    if os.path.isdir(where):  # noqa: PTH112 (Path.is_dir may raise)
        raise UserError(in_folder(where))
    if os.path.exists(where):  # noqa: PTH110
        raise UserError(f"{where} is not a Python file; name one, e.g. my_robot.py:make_env")
    raise UserError(f"there is no file {path if path.suffix == '.py' else f'{path}.py'}; write FILE.py:NAME")


def in_folder(where: str) -> str:
    """Explains what to write instead of a folder that is not a package."""
    names = sorted(file.name for file in Path(where).glob("*.py"))[:MOST_NAMED]
    has = f"which has {', '.join(names)}" if names else "which has none"
    return f"{where} is a folder; name a Python file in it ({has}), e.g. {Path(where, (names or ['FILE.py'])[0])}:NAME"


def import_own(where: str, name: str, role: str = "environment") -> ModuleType:
    """Imports the user's module and puts its folder, or for a name the current one, first on Python's path.

    Only here: commands that need none of the user's files must not import one that is named like a library.
    """
    if _allowed is not None and name not in _allowed and (is_path(where) or not where.startswith("t3d.")):
        raise NotImported(name, role)
    folder, module_name, file = Path.cwd(), where, file_of(where) if is_path(where) else None
    if file is not None:
        folder, module_name = file.parent, "" if file.name == "__init__.py" else file.stem
        if "." in module_name:
            raise UserError(f"{file} cannot be imported, because its name has a dot in it; rename it")
        while (folder / "__init__.py").is_file():  # the file is part of a package, and may import the rest of it
            folder, module_name = folder.parent, f"{folder.name}.{module_name}".rstrip(".")
    _look_first_in(folder)
    source = file or find_module(where)
    if source is not None and module_name not in sys.modules:  # commands print which code of the user's is run next
        LOG.info("%s %s from %s", role, f"{module_name}:{name.removeprefix(where)[1:]}".rstrip(":"), source)
    module = import_module(module_name, name, role)
    if file is not None and not os.path.samefile(getattr(module, "__file__", None) or os.devnull, file):  # noqa: PTH121
        raise UserError(f"{file} cannot be imported, because there is another module {module_name}; rename the file")
    return module


def find_module(where: str) -> Path | None:
    """Returns the file of a module without running anything of it; None if it has none or cannot be found."""
    top, *rest = where.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a module that somebody made without a spec
        return None
    if spec is not None and rest:
        folders = spec.submodule_search_locations or ()
        return next(filter(None, (_file_at(Path(folder, *rest)) for folder in folders)), None)
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def files_of(names: Iterable[str]) -> dict[str, str]:
    """Returns the files of modules that were imported for names such as drone:Drone, but not of installed ones."""
    files = {name: getattr(sys.modules.get(name.rpartition(":")[0]), "__file__", None) for name in names}
    return {name: file for name, file in files.items() if file and not is_installed(file)}


class RunFolders:
    """First of Python's finders: nothing inside a run's folder is ever imported; who sends a run must not send code."""

    folders: frozenset[str] = frozenset()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        origins = [spec.origin, *(spec.submodule_search_locations or ())] if spec is not None else []
        spellings = {spell(origin) for origin in origins if origin for spell in (os.path.abspath, os.path.realpath)}
        for origin, folder in product(spellings, self.folders):
            if Path(origin).is_relative_to(folder):
                raise UserError(INSIDE_RUN.format(name=name, path=origin))
        return spec


_run_folders = RunFolders()


def find_again(names: Iterable[str], files: Mapping[str, str], run: Path) -> None:
    """Makes the modules that a run names importable from where they were when it was trained, if they are not here."""
    names = [*names]
    _run_folders.folders = frozenset({os.path.abspath(run), os.path.realpath(run)} if names else ())  # noqa: PTH100
    if _run_folders not in sys.meta_path:
        sys.meta_path.insert(0, _run_folders)
    for name in names:
        where = name.rpartition(":")[0] or name
        if is_path(where):
            old = Path(os.path.abspath(where))  # noqa: PTH100
            file, hint = _file_at(old), "write where it is now into config.toml"
        else:
            _look_first_in(Path.cwd())
            old = Path(files.get(name, ""))
            file = find_module(where) or _find_at(where, old)
            hint = "start in the folder that it is in now"
        if file is None and old.name:
            raise UserError(f"{name} was in {old}, which is missing; {hint}")
        if file is not None and _is_in(str(file), str(run)):
            raise UserError(INSIDE_RUN.format(name=name, path=file))


def _find_at(where: str, old: Path) -> Path | None:
    """Looks for a module also in the folder from which it was imported."""
    if not os.path.isfile(old):  # noqa: PTH113
        return None
    folders = (old.parent if old.name == "__init__.py" else old).parents
    sys.path.append(str(folders[min(where.count("."), len(folders) - 1)]))
    return find_module(where)


def import_module(module_name: str, name: str, role: str = "environment") -> ModuleType:
    """Imports a module that is installed or on Python's path, for what the user has named."""
    try:
        return importlib.import_module(module_name)
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(f"{error.filename} does not parse: {error.msg} in line {error.lineno}") from None
    except (Exception, SystemExit) as error:
        if not isinstance(error, ModuleNotFoundError) or not error.name:
            raise UserError(f"importing {name} failed in {where_it_failed(error)}") from error
        if error.name in EXTRAS:
            hint = f'install it with: pip install "t3d[{EXTRAS[error.name]}]"'
        elif module_name == error.name or module_name.startswith(f"{error.name}."):
            hint = "is it installed, or in the folder you started from?"
        elif error.name.startswith("t3d."):
            hint = "this version of T3D has none: docs/beyond-the-defaults.md says what to import"
        else:
            hint = f"install it with: pip install {error.name}"
        raise UserError(f"cannot import {error.name} for the {role} {name}; {hint}") from None


def is_own(name: str) -> bool:
    """Whether a rule or a network is spelled as one of the user's own: FILE.py:NAME or module:NAME."""
    where, _, attribute = name.rpartition(":")
    return bool(where and attribute)


def with_full_path(name: str) -> str:
    """Makes the path in FILE.py:NAME absolute, so that it is found from any folder."""
    where, _, attribute = name.rpartition(":")
    return f"{file_of(where)}:{attribute}" if is_own(name) and is_path(where) else name


def named_or_own(name: str, known: Mapping[str, Value], kind: type[Value], role: str) -> Value:
    """Looks a value up by its name, or imports one of the user's own."""
    if name not in known and not is_own(name):
        raise UserError(
            f"unknown {role} {name}{did_you_mean(name, known)} ({', '.join(known)}, or FILE.py:NAME for your own)"
        )
    return known[name] if name in known else import_named(name, kind, role)


def import_named(name: str, kind: type[Value], role: str) -> Value:
    """Imports FILE.py:NAME or module:NAME, which must be a value of the given type."""
    where, _, attribute = name.rpartition(":")
    module = import_own(where, name, role)
    value = getattr(module, attribute, None)
    if not isinstance(value, kind):
        problem = f"is of type {type(value).__name__}" if hasattr(module, attribute) else "does not exist"
        needed = "function or class" if kind.__name__ == "Callable" else kind.__name__
        own = [key for key, other in vars(module).items() if isinstance(other, kind)]
        raise UserError(f"{name} {problem}; a {role} must be a {needed}{did_you_mean(attribute, own)}")
    return value


def _file_at(path: Path) -> Path | None:
    """The Python file at a path, which may lack .py or be the folder of a package."""
    candidates = [path] if path.suffix == ".py" else []
    candidates += [path.with_name(f"{path.name}.py"), path / "__init__.py"] if path.name else []
    return next((file for file in candidates if os.path.isfile(file)), None)  # noqa: PTH113 (Path.is_file may raise)


def _look_first_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def where_it_failed(error: BaseException) -> str:
    """Describes an error of the user's own code, and where in their files it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = ([frame for frame in frames[1:] if not is_installed(frame.filename)] or frames)[-1]
    text = " ".join(f"{type(error).__name__}: {text_of(error)}".split())
    if isinstance(error, SystemExit):
        text += ", which ends the program; put script code under if __name__ == '__main__':"
    return f"{where.filename}, line {where.lineno}: {text}"


def is_installed(file: str) -> bool:
    """Whether a file belongs to Python or an installed library: of this environment, the user or the system."""
    libraries = {sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")}
    libraries |= {*site.getsitepackages(), site.getusersitepackages()}
    return file.startswith("<frozen") or any(_is_in(file, folder) for folder in libraries)


def is_editable(file: str) -> bool:
    """Whether a file belongs to a project that is installed as editable (pip install -e)."""
    for distribution in metadata.distributions():
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable") and _is_in(file, url2pathname(urlsplit(origin["url"]).path)):
            return True
    return False


def _is_in(file: str, folder: str) -> bool:
    return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder))
