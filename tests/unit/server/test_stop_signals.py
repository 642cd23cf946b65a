from __future__ import annotations

import signal

import pytest

from triton_sam.server.stop_signals import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_flag_and_the_second_an_exception(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        assert not interrupts()
        signal.raise_signal(number)
        assert interrupts()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) == before
