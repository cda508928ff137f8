"""Runs a command on a terminal of its own, types what $TYPED holds, one line per prompt, and prints
what the terminal showed."""

import os
import pty
import sys
import termios
import time


def echoes(terminal):
    return termios.tcgetattr(terminal)[3] & termios.ECHO != 0


typed = os.environ["TYPED"].splitlines()
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
shown = b""
prompts = 0
while True:
    try:
        some = os.read(terminal, 4096)
    except OSError:
        break
    if not some:
        break
    shown += some
    # A prompt ends in ": " with nothing after it.
    while typed and shown.count(b"recovered): ") + shown.count(b"Once more: ") > prompts:
        prompts += 1
        # The prompt comes before the terminal stops to echo.
        while echoes(terminal):
            time.sleep(0.005)
        os.write(terminal, typed.pop(0).encode() + b"\n")
sys.stdout.write(shown.decode(errors="replace"))
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
