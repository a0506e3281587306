"""Pgx: board games, each lane a game of its own that takes moves by chance."""

import jax
import jax.numpy as jnp
import pgx

from tests.libraries.lanes import Lanes, keys

PGX = Lanes()
NAMES = ("connect_four", "hex", "2048", "gardner_chess", "go_9x9", "minatar-asterix")
with jax.enable_x64(False):  # it knows numbers of 32 bits alone
    GAMES = {name: pgx.make(name) for name in NAMES}  # its modules make arrays when they are imported


def played(name, words, moves):
    with jax.enable_x64(False):
        return play(GAMES[name], jax.random.wrap_key_data(words), moves)


def play(game, key, moves):
    """Returns what a player sees, may do and has won after some moves."""

    def move(state, key):
        allowed = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
        chance = jax.random.uniform(key, allowed.shape, jnp.float32)
        return game.step(state, jnp.argmax(allowed + chance).astype(jnp.int32), key), None

    state, _ = jax.lax.scan(move, game.init(key), jax.random.split(key, moves))
    return state.observation, state.legal_action_mask, state.rewards, state.terminated


@PGX(keys(), slow=False)
def connect_four(words):
    return played("connect_four", words, 12)


@PGX(keys())
def hex_board(words):
    return played("hex", words, 10)


@PGX(keys())
def twenty_forty_eight(words):
    return played("2048", words, 10)


@PGX(keys())
def gardner_chess(words):
    return played("gardner_chess", words, 10)


@PGX(keys())
def go(words):
    return played("go_9x9", words, 10)


@PGX(keys())
def asterix(words):
    return played("minatar-asterix", words, 10)
