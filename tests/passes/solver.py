"""The definition of each integer primitive, written down a second time: over bit vectors of z3."""

import z3

from qdtrace.ir.types import DType


def truth(condition):
    return z3.If(condition, z3.BitVecVal(1, 8), z3.BitVecVal(0, 8))


def meaning(name: str, ops, source: DType, target: DType, params):
    """The result of a primitive; bool is a bit vector of 8 bits that is 0 or 1."""
    a = ops[0]
    b = ops[1] if len(ops) > 1 else None
    signed, width = source.is_signed, a.size()
    zero, one, ones = (z3.BitVecVal(k, width) for k in (0, 1, -1))
    less = (
        {"lt": (a < b) if signed else z3.ULT(a, b), "le": (a <= b) if signed else z3.ULE(a, b)} if b is not None else {}
    )
    match name:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "neg":
            return -a
        case "not":
            return a ^ 1 if source is DType.bool else ~a
        case "and":
            return a & b
        case "or":
            return a | b
        case "xor":
            return a ^ b
        case "abs":
            return z3.If(a < 0, -a, a) if signed else a
        case "sign":
            return z3.If(a == 0, zero, z3.If(a < 0, ones, one) if signed else one)
        case "div":
            return z3.If(b == 0, ones, (a / b) if signed else z3.UDiv(a, b))
        case "rem":
            return z3.If(b == 0, a, z3.SRem(a, b) if signed else z3.URem(a, b))
        case "min":
            return z3.If(less["lt"], a, b)
        case "max":
            return z3.If(less["lt"], b, a)
        case "lt" | "le":
            return truth(less[name])
        case "gt" | "ge":
            return truth(z3.Not(less["le" if name == "gt" else "lt"]))
        case "eq":
            return truth(a == b)
        case "ne":
            return truth(a != b)
        case "select":
            return z3.If(a != 0, ops[1], ops[2])
        case "shift_left":
            return z3.If(z3.UGE(b, width), zero, a << b)
        case "shift_right_logical":
            return z3.If(z3.UGE(b, width), zero, z3.LShR(a, b))
        case "shift_right_arithmetic":
            return z3.If(z3.UGE(b, width), z3.If(a < 0, ones, zero), a >> b)
        case "population_count":
            return sum((z3.ZeroExt(width - 1, z3.Extract(k, k, a)) for k in range(width)), zero)
        case "integer_pow":
            return power(a, params["y"], ones, signed)
        case "convert":
            if target is DType.bool:
                return truth(a != 0)
            wide = target.bits - width
            if wide <= 0:
                return z3.Extract(target.bits - 1, 0, a)
            return z3.SignExt(wide, a) if signed else z3.ZeroExt(wide, a)
    raise AssertionError(f"no meaning for {name}")


def power(a, exponent: int, ones, signed: bool):
    one = z3.BitVecVal(1, a.size())
    product = one
    for _ in range(abs(exponent)):
        product = product * a
    if exponent >= 0:
        return product
    return z3.If(product == 0, ones, one / product if signed else z3.UDiv(one, product))
