"""`specx`: dispatches to one file a subcommand."""

import typer

from vllm_specx.cli import (
    bench,
    calibrate,
    demo,
    doctor,
    plan,
    recommend,
    regret,
    replay,
    report,
    simulate,
    top,
    train,
    verify,
    version,
    warm,
)
from vllm_specx.cli._edge import OneLineErrors

app = typer.Typer(
    cls=OneLineErrors,
    help="Speculative decoding for vLLM: measure it, see it work.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("bench")(bench.bench)
app.command("calibrate")(calibrate.calibrate)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("plan")(plan.plan)
app.command("recommend")(recommend.recommend)
app.command("regret")(regret.regret)
app.command("replay")(replay.replay)
app.command("report")(report.report)
app.command("simulate")(simulate.simulate)
app.command("top")(top.top)
app.add_typer(train.app, name="train")
app.command("verify")(verify.verify)
app.command("warm")(warm.warm)
app.command("version")(version.version)


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="specx")
