"""Volax: prices of options, American ones among them, and their sensitivities."""

import jax.numpy as jnp
from volax import greek
from volax.models import bjerksund_stensland_2002, black_scholes, crr_binomial

from tests.libraries.lanes import Lanes, spread

VOLAX = Lanes()
MARKET = {"discount_rates": 0.03, "dividend_rates": 0.01}


@VOLAX(spread(0.1, 0.5), spread(80.0, 120.0), slow=False)
def european(volatility, strike):
    return black_scholes.price(volatility, strike, 0.7, spots=100.0, **MARKET)


@VOLAX(spread(0.1, 0.5), spread(80.0, 120.0), single=1e-2)
def sensitivities(volatility, strike):
    return [
        f(black_scholes.price, volatility, strike, 0.7, 100.0, None, 0.03, 0.01)
        for f in (greek.delta, greek.gamma, greek.vega)
    ]


@VOLAX(spread(0.1, 0.5), spread(80.0, 120.0), rtol=1e-8, single=1e-2)
def american_tree(volatility, strike):
    return crr_binomial.price(
        volatility, strike, jnp.asarray(0.7), spots=100.0, is_american=jnp.asarray(True),
        is_call_options=jnp.asarray(False), num_steps=32, **MARKET
    )  # fmt: skip


@VOLAX(spread(0.1, 0.5), spread(80.0, 120.0), rtol=1e-7, single=1e-2)
def american_formula(volatility, strike):
    return bjerksund_stensland_2002.price(
        volatility, strike, jnp.asarray(0.7), spots=100.0, is_call_options=jnp.asarray(True), **MARKET
    )
