//! Tracing the victim: its system calls are the steps at which a fault can come.

use std::collections::HashSet;
use std::io;
use std::mem::MaybeUninit;

/// What a rank passes to getpriority at the beginning of its phase: no process has this number.
pub(crate) const BEGIN: i32 = 0x0cc1_0001;
/// The same at the end.
pub(crate) const END: i32 = 0x0cc1_0002;

/// The event of a stop that is no event of the traced program's; not in libc for glibc.
const EVENT_STOP: i32 = 128;
/// The signal of a stop at a system call.
const AT_CALL: i32 = libc::SIGTRAP | 0x80;

/// Calls in which a thread only lets time go by; how many they are is chance.
const WAITS: [libc::c_long; 4] =
    [libc::SYS_sched_yield, libc::SYS_futex, libc::SYS_nanosleep, libc::SYS_clock_nanosleep];

/// Marks a step in the calling process, for the thread that traces it.
pub(crate) fn mark(step: i32) {
    // There is no such process: the answer says nothing.
    let _ = rustix::process::getpriority_process(rustix::process::Pid::from_raw(step));
}

/// A traced process, seen from the thread that traces it.
pub(crate) struct Tracer {
    /// Whether waiting counts too: where there is little else.
    waits_count: bool,
    in_phase: bool,
    /// Stops in the phase so far.
    pub(crate) stops: u64,
    /// The stop at which to strike.
    step: Option<u64>,
    /// Threads in one of [`WAITS`].
    waiting: HashSet<i32>,
}

/// A request about a stopped thread. It may have been killed meanwhile, so failure is no error.
fn request(what: libc::c_uint, tid: i32, data: usize) -> libc::c_long {
    // SAFETY: the requests used here take numbers as data and write no memory of this process.
    unsafe { libc::ptrace(what, tid, std::ptr::null_mut::<libc::c_void>(), data) }
}

/// The system call at which a thread stands: its number and second argument; None at its end.
fn call_at(tid: i32) -> Option<Option<(libc::c_long, u64)>> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: at most `size` bytes are written, which the structure has.
    let got = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, tid, size, info.as_mut_ptr()) };
    if got <= 0 {
        return None;
    }
    // SAFETY: numbers only, zeroed before: any bytes are valid.
    let info = unsafe { info.assume_init() };
    match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: by `op` it is this variant.
            let entry = unsafe { info.u.entry };
            Some(Some((entry.nr as libc::c_long, entry.args[1])))
        }
        _ => Some(None),
    }
}

impl Tracer {
    /// Traces a child of this thread, with all threads that it will start. It dies with this one.
    pub(crate) fn seize(pid: i32, step: Option<u64>, waits_count: bool) -> io::Result<Self> {
        let options =
            libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
        let seized = request(libc::PTRACE_SEIZE, pid, options as usize) == 0;
        // It stops once, and goes from there from call to call.
        if !seized || request(libc::PTRACE_INTERRUPT, pid, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let waiting = HashSet::new();
        Ok(Self { waits_count, in_phase: false, stops: 0, step, waiting })
    }

    /// Has a stopped thread go on; calls `strike` first where its step has come.
    pub(crate) fn stopped(&mut self, tid: i32, status: i32, strike: impl FnOnce()) {
        let (signal, event) = ((status >> 8) & 0xff, status >> 16);
        let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
        if event == EVENT_STOP && stops.contains(&signal) {
            // Its process is stopped: it stays so until it is continued.
            request(libc::PTRACE_LISTEN, tid, 0);
            return;
        }
        if signal == AT_CALL && self.at_call(tid) {
            self.step = None;
            self.in_phase = false;
            strike();
        }
        // Later steps do not matter, once the phase is over or was struck.
        let over = !self.in_phase && self.stops > 0;
        let go_on = if over { libc::PTRACE_CONT } else { libc::PTRACE_SYSCALL };
        let deliver = if event == 0 && signal != AT_CALL { signal } else { 0 };
        request(go_on, tid, deliver as usize);
    }

    /// Counts; true where the step has come.
    fn at_call(&mut self, tid: i32) -> bool {
        match call_at(tid) {
            None => return false,
            Some(Some((libc::SYS_getpriority, argument))) => {
                if argument == BEGIN as u64 {
                    self.in_phase = true;
                } else if argument == END as u64 && self.in_phase {
                    self.in_phase = false;
                    self.stops += 1;
                    // The phase was shorter than the one that was counted.
                    return self.step.is_some();
                }
            }
            Some(Some((call, _))) if WAITS.contains(&call) && !self.waits_count => {
                self.waiting.insert(tid);
                return false;
            }
            Some(Some(_)) => {}
            Some(None) if self.waiting.remove(&tid) => return false,
            Some(None) => {}
        }
        if !self.in_phase {
            return false;
        }
        self.stops += 1;
        self.step.is_some_and(|step| self.stops > step)
    }
}
