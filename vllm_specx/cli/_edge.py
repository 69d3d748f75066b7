"""Where errors become exit codes: one line on stderr, 2 for bad input, 1 for a failed run, no traceback."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

BAD_INPUT = 2
FAILED = 1

# Typer brings its own click from some version on; the base of its errors is found through what it exports.
_UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError"
)


class OneLineErrors(TyperGroup):
    """Typer's group, with its boxed usage errors replaced by one line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        standalone = kwargs.get("standalone_mode", True)
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except _UsageError as error:
            fail(error.format_message(), BAD_INPUT)  # type: ignore[attr-defined]
        except typer.Abort:
            fail("interrupted", FAILED)
        if standalone:
            sys.exit(code if isinstance(code, int) else 0)
        return code


@contextmanager
def edge() -> Iterator[None]:
    """Turns the bench's errors into messages and exit codes; anything else is a bug and stays a traceback."""
    from vllm_specx.bench.errors import BenchError, EngineFailed

    try:
        yield
    except BenchError as error:
        fail(str(error), BAD_INPUT)
    except EngineFailed as error:
        fail(str(error), FAILED)
    except KeyboardInterrupt:
        fail("interrupted", FAILED)


def fail(message: str, code: int) -> NoReturn:
    """Print one line and leave."""
    print(f"specx: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def words(text: str) -> list[str]:
    """Read what commas separate."""
    return [word.strip() for word in text.split(",") if word.strip()]


def whole_numbers(text: str, flag: str) -> tuple[int, ...]:
    """Whole numbers that commas separate. Raises BenchError."""
    from vllm_specx.bench.errors import BenchError

    try:
        return tuple(int(word) for word in words(text))
    except ValueError as error:
        raise BenchError(
            f"{flag} {text!r} must be whole numbers separated by commas, for example 1,8"
        ) from error


def run_and_show(
    run: Callable[[Any, Callable[[Any], None]], dict[str, Any]],
    show: Callable[[Mapping[str, Any], Any], None],
    json_path: Path | None,
    each: str,
) -> dict[str, Any]:
    """Run with a progress meter, show the document on the terminal, and keep it in a file.

    Args:
        run: is given what is told of progress and what saves the document as it grows; returns it.
        show: is given the document and the terminal.
        json_path: of the file, if there is to be one.
        each: what the file has every one of.

    Raises:
        BenchError: the file cannot be written; before anything is run.

    """
    from vllm_specx.bench.meter import meter
    from vllm_specx.bench.report import check_writable, console, write_json

    if json_path is not None:
        check_writable(json_path)

    def save(document: Any) -> None:
        if json_path is not None:
            write_json(json_path, document)

    terminal = console()
    with meter(terminal) as tell:
        document = run(tell, save)
    show(document, terminal)
    if json_path is not None:
        terminal.print(f"{each}: {json_path}", highlight=False, soft_wrap=True)
    return document
