"""Imports the user's own module, by name or by file path; failures are explained in one sentence."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from t3d.errors import UserError

EXTRAS = {"gymnasium.envs.box2d": "box2d", "pybullet_envs_gymnasium": "pybullet"}  # module -> extra that installs it
MOST_NAMED = 5  # files of a folder


def is_path(where: str) -> bool:
    """Whether this is spelled like a file path rather than a module name."""
    return where.endswith(".py") or where.startswith(".") or any(sep in where for sep in (os.sep, os.altsep) if sep)


def is_here(name: str) -> bool:
    """Whether a module of this name is in the current folder."""
    return _found(Path(*name.split("."))) is not None


def file_of(where: str) -> Path:
    """Returns the absolute path of a file, given with or without .py, or as a package's folder."""
    path = Path(os.path.abspath(where))  # noqa: PTH100 (removes .., keeps links)
    found = _found(path)
    if found is not None:
        return found
    if is_folder(where):
        raise UserError(in_folder(where))
    if os.path.exists(where):  # noqa: PTH110
        raise UserError(f"{where} is not a Python file; name one, e.g. my_robot.py:make_env")
    raise UserError(f"there is no file {path if path.suffix == '.py' else f'{path}.py'}; write FILE.py:NAME")


def is_folder(where: str) -> bool:
    """Whether this is a folder; unlike Path.is_dir, never raises."""
    return os.path.isdir(where)  # noqa: PTH112


def in_folder(where: str) -> str:
    """Explains what to write instead of a folder that is not a package."""
    names = sorted(file.name for file in Path(where).glob("*.py"))[:MOST_NAMED]
    has = f"which has {', '.join(names)}" if names else "which has none"
    return f"{where} is a folder; name a Python file in it ({has}), e.g. {Path(where, (names or ['FILE.py'])[0])}:NAME"


def import_own(where: str, env_id: str) -> ModuleType:
    """Imports the user's module and puts its folder first on Python's path.

    A module given by name is searched in the current folder. The path changes only here: commands that need none of
    the user's files must not import one that happens to be named like a library.
    """
    if not is_path(where):
        _look_first_in(Path.cwd())
        return import_module(where, env_id)
    file = file_of(where)
    folder, name = file.parent, "" if file.name == "__init__.py" else file.stem
    if "." in name:
        raise UserError(f"{file} cannot be imported, because its name has a dot in it; rename it")
    while (folder / "__init__.py").is_file():  # the file is part of a package, and may import the rest of it
        folder, name = folder.parent, f"{folder.name}.{name}".rstrip(".")
    _look_first_in(folder)
    module = import_module(name, env_id)
    if not os.path.samefile(getattr(module, "__file__", None) or os.devnull, file):  # noqa: PTH121
        raise UserError(f"{file} cannot be imported, because there is another module {name}; rename the file")
    return module


def import_module(name: str, env_id: str) -> ModuleType:
    """Imports a module that is installed or on Python's path."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not error.name:
            raise UserError(_in_words(error, env_id)) from error
        if error.name in EXTRAS:
            hint = f'install it with: pip install "t3d[{EXTRAS[error.name]}]"'
        elif name == error.name or name.startswith(f"{error.name}."):
            hint = "is it installed, or in the folder you started from?"
        else:
            hint = f"install it with: pip install {error.name}"
        raise UserError(f"cannot import {error.name} for the environment {env_id}; {hint}") from None
    except SyntaxError as error:
        raise UserError(f"{error.filename} does not parse: {error.msg} in line {error.lineno}") from None
    except (Exception, SystemExit) as error:
        raise UserError(_in_words(error, env_id)) from error


def _found(path: Path) -> Path | None:
    candidates = [path] if path.suffix == ".py" else []
    candidates += [path.with_name(f"{path.name}.py"), path / "__init__.py"] if path.name else []
    return next((one for one in candidates if os.path.isfile(one)), None)  # noqa: PTH113 (Path.is_file may raise)


def _look_first_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _in_words(error: BaseException, env_id: str) -> str:
    """Describes how an import failed, and where in the user's own files."""
    frames = traceback.extract_tb(error.__traceback__)
    where = ([frame for frame in frames[1:] if not _is_installed(frame.filename)] or frames)[-1]
    what = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, SystemExit):
        what += ", which ends the program; put script code under if __name__ == '__main__':"
    return f"importing {env_id} failed in {where.filename}, line {where.lineno}: {what}"


def _is_installed(file: str) -> bool:
    """Whether a file belongs to Python or an installed library."""
    libraries = [sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")]
    return file.startswith("<frozen") or any(Path(file).is_relative_to(folder) for folder in libraries)
