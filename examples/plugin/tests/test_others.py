"""One line for each of the others: an attack, an accountant, a data source and a network."""

from half_delta import half_delta
from stripes import STRIPES
from sure_guess import SureGuess
from wide_tanh import wide_tanh

from airlock.testing import check_accountant, check_attack, check_net, check_source


def test_the_attack() -> None:
    check_attack(SureGuess)


def test_the_accountant() -> None:
    check_accountant(half_delta)


def test_the_source() -> None:
    check_source(STRIPES)


def test_the_network() -> None:
    check_net(wide_tanh)
