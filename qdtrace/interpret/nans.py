"""Operations that make NaN of numbers: what `debug="nans"` looks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.errors import InterpreterError

if TYPE_CHECKING:
    from qdtrace.interpret.compiler import Compiler, Env, Rule, Step
    from qdtrace.ir.program import Eqn


def watched(rule: Rule) -> Rule:
    """The rule of a primitive of numbers, which ends the run where the result is NaN and no operand is."""

    def compile_(compiler: Compiler, eqn: Eqn) -> Step:
        step = rule(compiler, eqn)
        if not eqn.outvar.dtype.is_float:
            return step
        out, operands = compiler.slot(eqn.outvar), [compiler.slot(a) for a in eqn.invars]

        def run(env: Env) -> None:
            step(env)
            if env[out] != env[out] and all(env[k] == env[k] for k in operands):
                given = ", ".join(str(env[k]) for k in operands)
                raise InterpreterError(
                    f"`{eqn.primitive.name}` makes NaN of {given}",
                    loc=eqn.loc,
                    help="keep the operands where the result is a number; where NaN is meant, debug=True does not look",
                )

        return run

    return compile_
