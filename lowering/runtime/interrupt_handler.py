"""The part of the launcher that Ctrl-C reaches: a handler of SIGINT that wraps Python's, and a word that ends kernels.

The handler calls Python's, and wakes a thread (`interrupts`), which decides whether kernels must end. It wakes none if
the thread that got the signal holds Python's lock: then Python runs, and handles the signal itself.
"""

from __future__ import annotations

from lowering.runtime.abi import c_string
from lowering.tables import PROGRAM

SIGINT = 2
ACTION_BYTES = 256
"""Room for a `struct sigaction`, which begins with the handler on all systems."""

INTERRUPT_WORDS = ("qd_python_handler", "qd_holds_lock", "qd_wake")
"""Words that the launcher shares with `interrupts`, beside the function `qd_ask_to_end`."""


def interrupt_handler(triple: str) -> str:
    """Returns IR of `qd_stop`, the word; of words for `interrupts`; and of `guard`, which installs the handler."""
    apple = "apple" in triple or "darwin" in triple
    errno, clock = ("__error", 5) if apple else ("__errno_location", 6)
    return f"""
@qd_stop = global i64 0
; Python's own handler of signals, null while it is not known
@qd_python_handler = global ptr null
; says whether this thread holds Python's lock
@qd_holds_lock = global ptr null
; where a byte wakes the thread, -1 where there is none
@qd_wake = global i64 -1
@woken = private constant {c_string("!")}
@guarded = internal global [2 x i64] zeroinitializer
declare i32 @sigaction(i32, ptr, ptr)
declare i64 @write(i32, ptr, i64)
declare i32 @usleep(i32)
declare ptr @{errno}()

define internal void @on_interrupt(i32 %signal, ptr %info, ptr %context) {{
entry:
  %python = load ptr, ptr @qd_python_handler
  call void %python(i32 %signal, ptr %info, ptr %context)
  %holds = load ptr, ptr @qd_holds_lock
  %held = call i32 %holds()
  %runs = icmp ne i32 %held, 0
  br i1 %runs, label %done, label %look
look:
  %wake = load atomic i64, ptr @qd_wake monotonic, align 8
  %nobody = icmp slt i64 %wake, 0
  br i1 %nobody, label %done, label %tell
tell:
  %place = call ptr @{errno}()
  %errno = load i32, ptr %place
  %file = trunc i64 %wake to i32
  %n = call i64 @write(i32 %file, ptr @woken, i64 1)
  store i32 %errno, ptr %place
  br label %done
done:
  ret void
}}

; sets the word for so many times 0.1 ms, or until a call has ended because of it; does nothing where `ran` is set: the
; caller holds Python's lock, so that the main thread cannot begin another call between the look and the word
define void @qd_ask_to_end(i64 %times, ptr %ran) {{
entry:
  %went = load atomic i64, ptr %ran monotonic, align 8
  %on = icmp ne i64 %went, 0
  br i1 %on, label %out, label %ask
ask:
  store atomic i64 1, ptr @qd_stop release, align 8
  br label %wait
wait:
  %k = phi i64 [0, %ask], [%k1, %wait]
  %e = call i32 @usleep(i32 100)
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %times
  %word = load atomic i64, ptr @qd_stop monotonic, align 8
  %asked = icmp ne i64 %word, 0
  %both = and i1 %more, %asked
  br i1 %both, label %wait, label %done
done:
  store atomic i64 0, ptr @qd_stop release, align 8
  br label %out
out:
  ret void
}}

; puts the handler around Python's wherever that stands alone, if the program has loops; asks the system once in a tick
; of its clock
define internal void @guard(ptr %program) alwaysinline {{
entry:
  {PROGRAM.load("%program", "loops")}
  %long = icmp ne i64 %loops, 0
  br i1 %long, label %look, label %done
look:
  call void @keep_handler()
  br label %done
done:
  ret void
}}

define internal void @keep_handler() {{
entry:
  %now = alloca [2 x i64], align 8
  %python = load ptr, ptr @qd_python_handler
  %unknown = icmp eq ptr %python, null
  br i1 %unknown, label %done, label %time
time:
  %e = call i32 @clock_gettime(i32 {clock}, ptr %now)
  %fraction_at = getelementptr i64, ptr %now, i64 1
  %fraction = load i64, ptr %fraction_at
  %before_at = getelementptr i64, ptr @guarded, i64 1
  %before = load atomic i64, ptr %before_at monotonic, align 8
  %seconds = load i64, ptr %now
  %seconds_before = load atomic i64, ptr @guarded monotonic, align 8
  %same_fraction = icmp eq i64 %fraction, %before
  %same_second = icmp eq i64 %seconds, %seconds_before
  %same = and i1 %same_fraction, %same_second
  br i1 %same, label %done, label %ask
ask:
  store atomic i64 %seconds, ptr @guarded monotonic, align 8
  store atomic i64 %fraction, ptr %before_at monotonic, align 8
  call void @put_handler(ptr %python)
  br label %done
done:
  ret void
}}

define internal void @put_handler(ptr %python) cold noinline {{
entry:
  %action = alloca [{ACTION_BYTES} x i8], align 16
  %e0 = call i32 @sigaction(i32 {SIGINT}, ptr null, ptr %action)
  %handler = load ptr, ptr %action
  %alone = icmp eq ptr %handler, %python
  br i1 %alone, label %put, label %done
put:
  store ptr @on_interrupt, ptr %action
  %e1 = call i32 @sigaction(i32 {SIGINT}, ptr %action, ptr null)
  br label %done
done:
  ret void
}}
"""
